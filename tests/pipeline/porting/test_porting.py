"""Whole ports: layout that stays, and what cannot be read."""

import ast

import pytest

from pipeline.porting.catalogue import RULES
from pipeline.porting.porting import port
from tests.support.ported import training_script
from tests.support.processes import ROOT


def test_comments_and_layout_stay():
    source = training_script(before="a = [ 1,2 ]   # kept\n\n\nb = {'c' : 3}")
    lines = port(source).text.splitlines()
    kept = [line for line in source.splitlines() if not line.startswith("updater")]
    position = -1
    for line in kept:
        position = lines.index(line, position + 1)


def test_ends_of_lines_stay():
    source = training_script(before="print('''a\nb''')", end="if c:\n\tprint(d)")
    text = port(source.replace("\n", "\r\n")).text
    assert text == port(source).text.replace("\n", "\r\n")


def test_imports_that_are_there_are_not_added():
    source = training_script(before="from pipeline import Pipeline")
    text = port(
        source.replace("np.random", "from pipeline import Pipeline\nnp.random")
    ).text
    assert "from pipeline import PipelineUpdater\n" in text


def test_imports_stand_before_what_needs_them():
    end = "import matplotlib\nmatplotlib.show()"
    lines = port(training_script(end=end)).text.splitlines()
    assert lines.index("from divisible import from_chain") < lines.index(
        "model = L.Classifier(net)"
    )


def test_code_of_python_2_is_refused_with_its_line():
    ported = port("import chainer\nprint 'a'\n")
    assert ported.text is None
    assert [(each.line, each.page) for each in ported.obstacles] == [
        (2, "howto/old_scripts")
    ]


def test_an_optimizer_of_another_function_is_refused():
    ported = port(training_script().replace("optimizer.setup(model)", ""))
    assert "not in the same function" in ported.obstacles[0].text


def test_findings_are_in_the_order_of_lines_and_have_pages():
    ported = port(training_script(before="print(1)", after="print(2)"))
    lines = [each.line for each in ported.findings]
    assert lines == sorted(lines)
    for each in ported.findings:
        assert not each.page or (ROOT / "docs" / f"{each.page}.rst").is_file()
    assert ast.parse(ported.text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.noun)
def test_rules_name_pages_that_exist(rule):
    assert (ROOT / "docs" / f"{rule.page}.rst").is_file()
    assert rule.finds and rule.writes


def test_a_script_that_does_not_train_is_refused():
    (found,) = port("import chainer\nprint(chainer.__version__)\n").obstacles
    assert "no updater of Chainer was found" in found.text


def test_any_source_is_ported_or_refused():
    n = 0
    for folder in ("examples", "docs/programs", "tests/pipeline/porting"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            ported = port(path.read_text())
            assert ported.text or ported.obstacles, path
            n += 1
    assert n > 60
