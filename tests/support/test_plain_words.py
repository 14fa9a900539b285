"""The checker of plain words finds each fault, and reads prose only."""

import textwrap

import pytest

from tests.support.plain_words import files, findings, main

LONG = "This sentence has " + "very " * 30 + "many words."


@pytest.fixture
def found(tmp_path):
    """Returns a function that returns the rule and line of each finding in a text."""

    def check(source, name="module.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return sorted((rule, line) for line, rule, _ in findings(path))

    return check


def _function(entry):
    return f'''
    def f(x, y):
        """Returns a number.

        Args:
            x: Number of samples.
            y (int): {entry}
        """
    '''


@pytest.mark.parametrize(
    "summary",
    ["Of samples.", "It ends.", "Sees to x.", "That which waits.", "Says no."],
)
def test_a_docstring_begins_with_a_noun_or_a_concrete_verb(found, summary):
    assert found(f'"""{summary}"""') == [("opening", 1)]
    assert found('"""Often returns a number."""') == []


@pytest.mark.parametrize(
    "entry",
    [
        "Of samples.",
        "As ``x``.",
        "As `x`.",
        "As in f.",
        "As of x.",
        "The same.",
        "What it is.",
    ],
)
def test_an_argument_begins_with_a_noun(found, entry):
    assert found(_function(entry)) == [("opening", 7)]
    assert found(_function("Seconds of a step. As in f.")) == []


@pytest.mark.parametrize("comment", ["Of all.", "By rank.", "A rank. It waits.", "It."])
def test_each_sentence_of_a_comment_has_its_subject(found, comment):
    wanted = [] if comment == "It." else [("opening", 2)]
    assert found(f"\n# {comment}\nx = 1  # It is one.") == [*wanted, ("opening", 3)]


def test_lines_of_a_comment_are_read_together(found):
    assert found("# The end of a step, or\n# It.\n") == []
    assert found("x = 1  # One, and\n# It is two.\n") == [("opening", 2)]


def test_phrases_are_found_across_lines(found):
    assert found('"""Sets x.\n\nThis sees to\nit that y is.\n"""') == [("phrase", 3)]
    assert found("# All come, but\n# for one.") == [("phrase", 1)]
    assert found("# A button for one.\n# Tell it what has nothing.") == []


def test_messages_are_read_for_phrases_only(found):
    assert found(f'raise ValueError(f"{{x}}: make the model anew, {LONG}")') == [
        ("phrase", 1)
    ]
    assert found('"""Sets x."""\nKEYS = ["anew", "It is one of them"]') == []


def test_long_sentences_are_found(found):
    assert found(f'"""Sets x.\n\n{LONG}\n"""') == [("sentence", 3)]
    assert found(f"# {LONG}") == [("sentence", 1)]


def test_code_in_a_sentence_is_one_word(found):
    text = "Sets ``" + "x " * 40 + "``, `y z` and :func:`a\nb`."
    assert found(f'"""{text}"""') == []


def test_arguments_and_list_items_are_sentences_of_their_own(found):
    half = " ".join(["word"] * 20)
    assert found(_function(f"{half}\n            z: {half}")) == []
    assert found(f"{half}\n\n- {half}\n- {half}\n", "page.rst") == []
    assert found(f"- A {half}\n  {half}\n", "page.rst") == [("sentence", 1)]


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("page.rst", "Start it::\n\n    run anew\n\n    and anew\n\nIt runs."),
        ("page.rst", ".. code-block:: console\n\n    $ run anew\n"),
        ("page.rst", "| anew |\n\n>>> f()\nanew\n"),
        ("page.rst", "Runs:\n\n    mpiexec -n 2 python run.py anew\n    or anew\n"),
        ("page.rst", "=====  ====\nA      anew\n=====  ====\nanew   B\n=====  ====\n"),
        ("page.md", "Start it:\n\n    run anew\n\n```\nanew\n```\nIt runs.\n"),
    ],
)
def test_code_and_tables_of_pages_are_skipped(found, name, page):
    assert found(page, name) == []
    assert found(f"{page}\n\nRun it anew.", name) == [("phrase", page.count("\n") + 3)]


def test_main_checks_files_below_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "module.py").write_text("# It is one.\n")
    (inner / "data.txt").write_text("anew\n")
    assert main([str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == [
        "inner/module.py:1: opening: [It] It is one.",
        "1 places in 1 files are not in plain words",
    ]
    (inner / "module.py").write_text("# One.\n")
    assert not main([str(inner / "module.py")])
    assert list(files([tmp_path])) == [inner / "module.py"]
