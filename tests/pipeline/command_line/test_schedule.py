import pytest
from click.testing import CliRunner

from divisible import LayerCost, Profile
from divisible.schedules import Schedule, create
from pipeline.command_line.main import main

SIZES = ("--stages", 4, "--microbatches", 8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def run(*arguments, code=0):
    arguments = ["schedule", *map(str, arguments)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def rows(output):
    """Returns the cells of a table by the text in their first column."""
    return {line.split()[0]: line.split()[1:] for line in output.splitlines()[1:]}


def save(path, text):
    path.write_text(text, encoding="utf-8")
    return path.name


def test_a_drawn_schedule_is_read_again(folder):
    drawn = run("draw", "zb_v", *SIZES)
    assert Schedule.parse(drawn) == create("zb_v", 8, 8, 4)
    name = save(folder / "mine.txt", drawn)
    assert run("draw", name) == drawn
    checked = run("check", name, "1f1b")
    assert "zb_v: 8 stages on 4 ranks" in checked and "1f1b: 4 stages" in checked


def test_check_marks_the_fault(folder):
    text = run("draw", "1f1b", "--stages", 2, "--microbatches", 2)
    wrong = text.replace("0B1", "0F1", 1)
    output = run("check", save(folder / "wrong.txt", wrong), code=1)
    assert "wrong.txt: " in output and "!0F1!" in output


def test_all_schedules_compare_on_the_same_ranks_and_layers(folder):
    """1F1B takes (m + d - 1) 3 and holds d; the others as their docstrings say."""
    found = rows(run("compare", "1f1b", "gpipe", "zb_v", "v_half", *SIZES))
    assert found["1f1b"][:2] == ["33", "s"]
    assert found["gpipe"][:2] == ["33", "s"]
    held = {name: float(cells[4]) for name, cells in found.items()}
    assert held["1f1b"] == 4 and held["gpipe"] == 8 and held["v_half"] <= 3
    assert float(found["zb_v"][0]) < 33 * 0.9
    assert found["1f1b"][2] == "1.00"


def test_times_are_those_of_a_ranks_layers(folder):
    output = run("compare", "gpipe", *SIZES, "--times", "2,1,1", "--message", "0.5")
    # 11 forwards and backwards and 2 x 3 messages in the longest chain.
    assert rows(output)["gpipe"][:2] == ["47", "s"]


def test_a_profile_is_cut_for_each_schedule(folder):
    layers = [LayerCost(1.0, 1.0, 1.0, name=str(i)) for i in range(8)]
    Profile(layers, n_samples=4).save("p.json")
    output = run("compare", "1f1b", "zb_v", *SIZES, "--profile", "p.json")
    assert rows(output)["1f1b"][:2] == ["66", "s"]
    drawn = run("compare", "1f1b", "zb_v", *SIZES, "--plot", "both.png")
    assert "drawn to both.png" in drawn
    assert (folder / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "code, arguments, message",
    [
        (2, ("check", "1f2b"), "neither a file nor a schedule"),
        (2, ("compare", "1f1b"), "give --stages and --microbatches"),
        (2, ("compare", "1f1b", "1f1b", *SIZES), "the same name"),
        (1, ("compare", "1f1b", *SIZES, "--times", "1,2"), "three numbers"),
        (1, ("compare", "1f1b", *SIZES, "--times", "0,0,0"), "give --times above 0"),
        (1, ("compare", "1f1b", "empty.txt", *SIZES), "empty.txt: "),
        (2, ("compare", "gpipe", "small.txt", *SIZES), "has 2 ranks"),
        (2, ("compare", "gpipe", *SIZES, "--profile", "p.json", "--message", 1), "own"),
    ],
)
def test_wrong_input_is_refused_with_a_cure(folder, code, arguments, message):
    save(folder / "empty.txt", "")
    small = create("1f1b", n_stages=2, n_microbatches=8)
    save(folder / "small.txt", str(small))
    Profile([LayerCost(1.0, 1.0, 1.0)] * 8, n_samples=4).save("p.json")
    output = run(*arguments, code=code)
    assert message in output and "Traceback" not in output
