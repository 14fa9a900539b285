"""The names, files and commands on the page about the sources are there."""

import importlib
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main
from tests.support.processes import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "explanation" / "sources.rst").read_text()
ROLES = re.findall(r":(?:func|class|meth|mod|doc):`~?([^`]+)`", PAGE)
LITERALS = [" ".join(text.split()) for text in re.findall(r"``([^`]+)``", PAGE)]
IS_COMMAND = re.compile(r"(mpiexec|python|divisible) ")
COMMANDS = sorted({text for text in LITERALS if IS_COMMAND.match(text)})
OURS = (*PACKAGES, "benchmarks", "examples")


def found(name):
    """Returns the object with a dotted name."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            place = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            place = getattr(place, part)
        return place
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", sorted(set(ROLES)))
def test_names_exist(name):
    if "/" in name or "." not in name:
        assert (ROOT / "docs" / "explanation" / f"{name}.rst").is_file() or (
            find_spec(name)
        )
    else:
        assert found(name) is not None


def test_modules_and_files_exist():
    checked = 0
    for text in LITERALS:
        if re.fullmatch(r"[\w/]+\.py|[a-z_]+/[\w/]+", text):
            assert (ROOT / text).exists(), text
        elif re.fullmatch(r"[\w.]+", text) and text.split(".")[0] in OURS:
            assert found(text) is not None, text
        else:
            continue
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command):
    words = shlex.split(command)
    if words[0] == "mpiexec":
        assert words[1] == "-n" and words[2].isdigit()
        words = words[3:]
    if words[0] == "divisible":
        called = CliRunner().invoke(main, words[1:])
        assert called.exit_code == 0, called.output
        return
    assert words[0] == "python"
    if words[1] != "-m":
        assert (ROOT / words[1]).is_file()
        return
    spec = find_spec(words[2])
    assert spec is not None, words[2]
    home = Path(spec.origin)
    files = home.parent.glob("*.py") if home.name == "__init__.py" else [home]
    text = "".join(file.read_text() for file in files)
    # A module that only has functions would run without a word.
    if home.name == "__init__.py":
        assert (home.parent / "__main__.py").is_file(), words[2]
    else:
        assert 'if __name__ == "__main__":' in text, words[2]
    for word in words[3:]:
        assert not word.startswith("--") or f'"{word}"' in text, word


def test_commands_that_take_long_have_a_quick_run():
    long = re.findall(r"^- ``(benchmarks[\w.]+)``", PAGE, re.MULTILINE)
    assert len(long) > 5
    for name in long:
        assert any(name in command.split() for command in COMMANDS), name
        home = Path(find_spec(name).origin)
        files = home.parent.glob("*.py") if home.name == "__init__.py" else [home]
        text = "".join(file.read_text() for file in files)
        assert "quick.parse(" in text or '"--quick"' in text, name


#: What each paper numbers, and up to which number.
NUMBERED = {
    "Takisawa": {"Fig.": 14, "Table": 1, "Equation": 3, "Section": 8},
    "Oyama": {"Fig.": 14, "Table": 3},
    "Ozawa": {"Fig.": 13, "Table": 3, "Equation": 11, "Section": 8},
}
PLACE = re.compile(
    r"(Section|Fig\.|Table)? ?\(?(\d+)\)?(\.\d+)*(?: to \(?(\d+)\)?)?,? ?"
)


def places(row):
    """Yields the kind and the number of all that the first cell of a row names."""
    kind = ""
    for found in PLACE.finditer(row):
        kind = found[1] or ("Equation" if "(" in found[0] else kind)
        for number in range(int(found[2]), int(found[4] or found[2]) + 1):
            yield kind, number


@pytest.mark.parametrize("author", NUMBERED)
def test_each_figure_table_and_equation_has_a_row(author):
    titles_and_sections = re.split(r"^(\S.*)\n-+\n", PAGE, flags=re.MULTILINE)[1:]
    titles, sections = titles_and_sections[::2], titles_and_sections[1::2]
    (section,) = (s for title, s in zip(titles, sections) if title.startswith(author))
    cells = re.findall(r"^   \* - (.*)$", section, re.MULTILINE)
    named = {place for cell in cells for place in places(cell)}
    for kind, last in NUMBERED[author].items():
        # Sections 1 of the papers introduce them.
        first = 2 if kind == "Section" else 1
        missing = {(kind, n) for n in range(first, last + 1)} - named
        assert not missing, author


def test_each_row_has_a_name_or_a_reason():
    rows = re.split(r"\n   \* - ", PAGE)[1:]
    rows = [row for row in rows if not row.startswith("there")]
    assert len(rows) > 60
    for row in rows:
        _, _, here, *_ = re.split(r"\n     -", row)
        assert "`" in here or "left out" in here, row
