import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main
from pipeline.smoke.launching import Ended


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ([], 2, "give the number of ranks as -n, or --hosts"),
        (["--hosts", "a,,b"], 1, "'' is no host: write a name"),
        (["--hosts", "a:two"], 1, "a cannot run 'two' ranks"),
        (["--hosts", "a,b,c", "-n", "2"], 2, "-n 2 is not from 3, one for each host"),
        (["--hosts", "a:2,b:2", "-n", "5"], 2, "to the 4 ranks that --hosts may run"),
        (["--hosts", "a", "--launcher", "true"], 1, "write {hosts} where its command"),
        (["-n", "2", "-o", "none/a.json"], 1, "none/a.json: files cannot be written"),
        (["-n", "2", "--hosts-file", "none/a"], 1, "none/a: files cannot be written"),
        (["-n", "0"], 2, "0 is not positive"),
        (["-n", "2", "--launcher", "no-such-launcher"], 1, "no-such-launcher"),
        (["-n", "2", "--launcher", "false"], 1, "FAIL: the ranks ended with code 1"),
        # Such as a launcher that prints its help.
        (["-n", "2", "--launcher", "true"], 1, "with code 0 and measured nothing"),
        (["-n", "2", "--timeout", "0"], 2, "0"),
    ],
)
def test_says_what_is_wrong_with_options(arguments, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["smoke", *arguments])
    assert result.exit_code == code, result.output
    assert words in result.output
    assert not [*tmp_path.iterdir()]


def test_names_hosts_on_which_the_launcher_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    launcher = tmp_path / "mpiexec"
    launcher.write_text(
        '#!/bin/bash\n[ "$2" == good:1 ] || { echo no route; exit 9; }\n'
    )
    launcher.chmod(0o755)
    arguments = ["--hosts", "good,bad:2", "--launcher", str(launcher)]
    result = CliRunner().invoke(main, ["smoke", *arguments])
    assert result.exit_code == 1
    assert (
        "FAIL bad: the launcher starts nothing there (exit code 9: no route)"
        in result.output
    )
    assert "good:" not in result.output
    assert "ended with code 9" in result.output


@pytest.mark.parametrize(
    "hosts, n_ranks, dealt",
    [
        ("a,b", None, "a:1,b:1"),
        ("a,b:3", None, "a:1,b:3"),
        # Each host is measured, however many ranks the first ones may run.
        ("a,b,c", 4, "a:2,b:1,c:1"),
        ("a:4,b:4", 4, "a:2,b:2"),
        ("a:1,b", 4, "a:1,b:3"),
    ],
)
def test_deals_ranks_to_hosts_as_each_launcher_takes_them(
    hosts, n_ranks, dealt, monkeypatch
):
    commands = []

    def run(command, seconds):
        commands.append(command)
        return Ended(0, "PASS: 2 of 2\n")

    monkeypatch.setattr("pipeline.smoke.launching.run", run)
    arguments = ["--hosts", hosts, *(["-n", str(n_ranks)] if n_ranks else [])]
    for launcher in ("srun", "mine {hosts}"):
        given = ["smoke", *arguments, "--launcher", launcher]
        assert CliRunner().invoke(main, given).exit_code == 0
    slots = [int(each.partition(":")[2]) for each in dealt.split(",")]
    assert commands[0][:2] == ["srun", f"--nodes={len(slots)}"]
    assert commands[1][:4] == ["mine", dealt, "-n", str(sum(slots))]
    # A launcher without words is the usual one.
    assert (
        not CliRunner().invoke(main, ["smoke", "-n", "2", "--launcher", " "]).exit_code
    )
    assert commands[2][0].endswith("mpiexec")
    assert commands[2][1:3] == ["-n", "2"]


def test_is_not_started_twice(monkeypatch):
    monkeypatch.setattr("pipeline.command_line.smoke.is_one_of_several", lambda: True)
    result = CliRunner().invoke(main, ["smoke", "-n", "2"])
    assert result.exit_code == 2
    assert "leave out -n, --hosts and --launcher" in result.output
