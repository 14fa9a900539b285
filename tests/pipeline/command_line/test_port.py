"""``divisible port`` writes a copy, shows the difference, and says what it cannot."""

import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main
from pipeline.porting.catalogue import RULES
from tests.support.ported import training_script


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(training_script())
    return path


def run(*arguments):
    return CliRunner().invoke(main, ["port", *map(str, arguments)])


def test_a_copy_is_written_beside_the_script(script):
    result = run(script)
    assert result.exit_code == 0, result.output
    copy = script.with_name("train_pipeline.py")
    assert "PipelineUpdater(train_iter, optimizer, pipe)" in copy.read_text()
    assert script.read_text() == training_script()
    assert f"{script}:14: each minibatch goes through the stages" in result.output
    assert "+updater = PipelineUpdater(train_iter, optimizer, pipe)" in result.output
    assert f"mpiexec -n 2 divisible run {copy}" in result.output


def test_a_file_is_replaced_by_force_only(script):
    copy = script.with_name("train_pipeline.py")
    copy.write_text("mine")
    assert run(script).exit_code == 2 and copy.read_text() == "mine"
    assert run(script, "--show").exit_code == 0 and copy.read_text() == "mine"
    assert run(script, "--force").exit_code == 0 and copy.read_text() != "mine"


def test_another_file_may_be_named(script, tmp_path):
    assert run(script, "-o", tmp_path / "new.py").exit_code == 0
    assert (tmp_path / "new.py").exists()
    assert not script.with_name("train_pipeline.py").exists()


def test_marks_and_encodings_are_those_of_python(script):
    (script.parent / "net.py").write_bytes(
        b"# coding: latin-1\n# \xe9\nbn = L.BatchNormalization(3)\n"
    )
    script.write_bytes(b"\xef\xbb\xbfimport net\n" + script.read_bytes())
    assert run(script).exit_code == 0
    assert "n_microbatches=1" in script.with_name("train_pipeline.py").read_text()


def test_a_folder_that_is_missing_is_named(script, tmp_path):
    result = run(script, "-o", tmp_path / "none" / "new.py")
    assert result.exit_code == 1 and "Error" in result.output
    assert isinstance(result.exception, SystemExit)


def test_what_stands_in_the_way_has_an_exit_code_of_its_own(script):
    script.write_text(training_script(end="g(model)"))
    result = run(script)
    assert result.exit_code == 3
    assert (
        f"{script}:18: cannot be ported: model is used behind the updater"
        in result.output
    )
    assert "(docs/howto/take_a_chain_apart.rst)" in result.output
    assert not script.with_name("train_pipeline.py").exists()


def test_the_rules_are_listed(monkeypatch):
    # Where tests run in parallel, something tells another width.
    monkeypatch.setenv("COLUMNS", "200")
    result = run("--rules")
    assert result.exit_code == 0
    assert all(rule.noun in result.output for rule in RULES)
