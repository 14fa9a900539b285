"""The README's example prints what it shows, and its Japanese twin agrees with it."""

import re

import pytest

from divisible.schedules.catalogue import CATALOGUE
from tests.support.matrix import matrix
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

README = (ROOT / "README.md").read_text()
IN_JAPANESE = (ROOT / "README.ja.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
LINE = re.compile(r"^ *(\d+)  loss (\S+)  accuracy (\S+)$", re.MULTILINE)


def numbers(text):
    return [tuple(map(float, line)) for line in LINE.findall(text)]


@pytest.mark.parametrize("n_ranks", [2, *matrix(1)])
def test_the_example_prints_what_it_says(n_ranks, tmp_path):
    (program,) = (text for language, text in BLOCKS if language == "python")
    (printed,) = (text for language, text in BLOCKS if not language)
    (tmp_path / "net.py").write_text(program)
    # The script is outside of the repository, which an editable install would find.
    result = mpiexec(n_ranks, [tmp_path / "net.py"], env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stdout
    actual, expected = numbers(result.stdout), numbers(printed)
    assert len(expected) == len(printed.splitlines()) == 4
    assert len(result.stdout.splitlines()) == 4, result.stdout
    # Another BLAS adds in another order, and 300 steps of Adam carry that on: a loss
    # may round to the next hundredth.
    for mine, theirs in zip(actual, expected):
        assert mine[0] == theirs[0]
        assert mine[1:] == pytest.approx(theirs[1:], abs=0.011)


@pytest.mark.parametrize("text", [README, IN_JAPANESE], ids=["english", "japanese"])
def test_links_lead_somewhere(text):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("text", [README, IN_JAPANESE], ids=["english", "japanese"])
def test_counts_of_old_code_are_those_of_the_results(text):
    results = {
        part: (RESULTS / f"old_repositories{part}.txt").read_text()
        for part in ("", "_pipelines", "_ports")
    }
    scripts = re.findall(r": (\d+) of \d+ scripts", results[""])
    models = re.findall(r"; (\d+) of \d+ models by a driver", results[""])
    assert len(scripts) == len(models) == 2
    expected = [
        sum(map(int, scripts)),
        sum(map(int, models)),
        results["_pipelines"].count("losses equal"),
        len(re.findall(r" [+]\d+ -\d+ lines, ", results["_ports"])),
    ]
    lines = re.search(r"chainer\.org.*?what_we_ran.*?\n- .*?\n- ", text, re.DOTALL)
    told = [int(n) for n in re.findall(r"(?<![.\d])\d\d(?![.\d])", lines[0])]
    assert told == expected


def facts(text):
    """Blocks and commands, and for each section its names, links and figures."""
    blocks = BLOCK.findall(text) + re.findall(r"^    \S.*$", text, re.MULTILINE)
    sections = re.split(r"^##+ .*$", BLOCK.sub("", text), flags=re.MULTILINE)
    return blocks, [
        sorted(
            re.findall(r"`[^`\n]+`", section)
            # Links of the two languages to each other.
            + re.findall(r"\]\(((?!README)[^)]+)\)", section)
            + re.findall(r"\d+\.\d+", section)
        )
        for section in sections
    ]


def test_the_japanese_readme_says_the_same():
    (blocks, sections), (their_blocks, their_sections) = map(
        facts, (README, IN_JAPANESE)
    )
    assert blocks == their_blocks
    assert len(sections) == len(their_sections) == 6
    for mine, theirs in zip(sections, their_sections):
        assert mine == theirs


@pytest.mark.parametrize("text", [README, IN_JAPANESE], ids=["english", "japanese"])
def test_the_table_of_schedules_is_the_measured_one(text):
    result = (ROOT / "benchmarks" / "results" / "schedules.txt").read_text()
    row = re.compile(
        r"^(\w+) +[\d.]+ +([\d.]+) \(.*?\) +([\d.]+) +([\d.]+) +[\d.]+ +([\d.]+)$",
        re.MULTILINE,
    )
    measured = row.findall(result)
    assert len(measured) == len(CATALOGUE)
    cells = r"^\| `(\w+)`" + r" \| ([\d.]+)" * 4 + r" \|$"
    assert re.findall(cells, text, re.MULTILINE) == measured
