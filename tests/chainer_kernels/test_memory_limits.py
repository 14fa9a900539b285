"""Memory that a process may still take, by the files of the system."""

from chainer_kernels.memory_limits import free_bytes


def test_free_bytes(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    assert free_bytes(proc, groups) == 0
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   8 kB\n")
    (proc / "self/cgroup").write_text("4:cpu:/a\n3:memory:/a\n0::/b\n")
    assert free_bytes(proc, groups) == 8 << 10
    (groups / "memory/a").mkdir(parents=True)
    (groups / "memory/a/memory.limit_in_bytes").write_text("5000\n")
    (groups / "memory/a/memory.usage_in_bytes").write_text("1000\n")
    assert free_bytes(proc, groups) == 4000
    (groups / "b").mkdir()
    (groups / "b/memory.max").write_text("max\n")
    (groups / "b/memory.current").write_text("1000\n")
    assert free_bytes(proc, groups) == 4000
    (groups / "b/memory.max").write_text("1500\n")
    assert free_bytes(proc, groups) == 500


def test_limits_of_groups_above_count_and_cached_files_are_free(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable: 8 kB\n")
    (proc / "self/cgroup").write_text("0::/job/step\n")
    (groups / "job/step").mkdir(parents=True)
    (groups / "job/memory.max").write_text("5000\n")
    (groups / "job/memory.current").write_text("4000\n")
    (groups / "job/memory.stat").write_text("inactive_file 700\n")
    assert free_bytes(proc, groups) == 1700
