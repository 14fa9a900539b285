import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ([], 2, "give the number of ranks as -n, or --hosts"),
        (["--hosts", "a,,b"], 2, "a name that is empty"),
        (["--hosts", "a:two"], 1, "write HOST, or HOST:RANKS"),
        (["-n", "0"], 2, "0 is not positive"),
        (["-n", "2", "--launcher", "no-such-launcher"], 1, "no-such-launcher"),
        (["-n", "2", "--launcher", "false"], 1, "FAIL: the ranks ended with code 1"),
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
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/bash\n[ "$2" == good ] || { echo no route; exit 9; }\n')
    launcher.chmod(0o755)
    arguments = ["--hosts", "good,bad:2", "--launcher", str(launcher)]
    result = CliRunner().invoke(main, ["smoke", *arguments])
    assert result.exit_code == 1
    assert (
        "FAIL bad:2: the launcher starts nothing there (exit code 9: no route)"
        in result.output
    )
    assert "good:" not in result.output
    assert "ended with code 9" in result.output


def test_is_not_started_twice(monkeypatch):
    monkeypatch.setattr("pipeline.command_line.smoke.is_one_of_several", lambda: True)
    result = CliRunner().invoke(main, ["smoke", "-n", "2"])
    assert result.exit_code == 2
    assert "leave out -n, --hosts and --launcher" in result.output
