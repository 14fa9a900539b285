"""Quick runs of benchmarks."""

import argparse
from pathlib import Path

import pytest

from benchmarks.common import quick


def parser_of_rounds():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--output", type=Path)
    return parser


SMALLER = {"rounds": 2, "sizes": [8]}


@pytest.mark.parametrize(
    "argv, rounds, sizes, output",
    [
        ([], 9, [8, 64], None),
        (["--quick"], 2, [8], quick.FOLDER / "name.txt"),
        (["--rounds", "5", "--quick"], 5, [8], quick.FOLDER / "name.txt"),
        (["--quick", "--output", "mine.txt"], 2, [8], Path("mine.txt")),
    ],
    ids=["whole", "quick", "with an option", "with a file"],
)
def test_a_quick_run_has_smaller_defaults_and_another_file(argv, rounds, sizes, output):
    found = quick.parse(parser_of_rounds(), "name", SMALLER, argv)
    assert (found.rounds, found.sizes, found.output) == (rounds, sizes, output)
    assert found.quick == ("--quick" in argv)


def test_the_help_has_what_is_smaller(capsys):
    with pytest.raises(SystemExit):
        quick.parse(parser_of_rounds(), "name", SMALLER, ["--help"], text="90 % off")
    text = " ".join(capsys.readouterr().out.split())
    assert "90 % off, --rounds 2 --sizes 8; its result is build/quick/name.txt" in text
