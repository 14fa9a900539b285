import pytest

from pipeline.supervision.hosts import Host, allocated, read_hosts, with_slots


def test_a_file_lists_hosts_as_pbs_and_users_do(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("# ours\na\na\nb\n\nc slots=4\nd:2  # old\n")
    hosts = [Host("a", 2), Host("b"), Host("c", 4), Host("d", 2)]
    assert read_hosts(str(file)) == hosts
    assert allocated({"PBS_NODEFILE": str(file)}) == hosts
    assert allocated({}) == []


@pytest.mark.parametrize(
    "names, found",
    [
        ("node7", ["node7"]),
        ("a[1-3],b", ["a1", "a2", "a3", "b"]),
        ("r[1,2]n[08-10]", [f"r{r}n{n}" for r in (1, 2) for n in ("08", "09", "10")]),
        ("x[099-101]-ib", ["x099-ib", "x100-ib", "x101-ib"]),
    ],
)
def test_lists_of_slurm_are_expanded(names, found):
    hosts = allocated({"SLURM_JOB_NODELIST": names})
    assert [host.name for host in hosts] == found


def test_tasks_of_slurm_are_slots_where_they_fit():
    job = {"SLURM_JOB_NODELIST": "a[1-4]", "SLURM_TASKS_PER_NODE": "4(x3),2"}
    assert [host.slots for host in allocated(job)] == [4, 4, 4, 2]
    job["SLURM_TASKS_PER_NODE"] = "4(x3)"
    assert [host.slots for host in allocated(job)] == [0] * 4


@pytest.mark.parametrize(
    "hosts, n_ranks, slots",
    [("a,b", 4, [2, 2]), ("a,b,c", 4, [2, 2, 2]), ("a:3,b", 4, [3, 1]), ("a,b", 1, 2)],
)
def test_ranks_are_spread_where_no_number_is_given(hosts, n_ranks, slots):
    found = [host.slots for host in with_slots(read_hosts(hosts), n_ranks)]
    assert found == (slots if isinstance(slots, list) else [1, 1])


@pytest.mark.parametrize(
    "text, words",
    [
        ("a,,b", "'' is no host"),
        ("a:0", "a cannot run '0' ranks"),
        ("a:", "a cannot run '' ranks"),
        ("-o,b", "'-o' is no host"),
        ("some/file", "there is no file some/file"),
    ],
)
def test_wrong_hosts_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_hosts(text)


def test_a_wrong_list_of_slurm_is_refused():
    with pytest.raises(ValueError, match="node"):
        allocated({"SLURM_JOB_NODELIST": "a[1-x]"})
