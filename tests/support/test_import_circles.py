"""The checker of circles sees each way in which a module can name another."""

import sys
import textwrap

import pytest

from tests.support.import_circles import circles, import_graph

#: Sources of a module that names ``made_up.other``.
WAYS = {
    "at the top": "from made_up import other",
    "in a function": "def f():\n    import made_up.other",
    "for annotations": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from made_up.other import Thing
    """,
    "by its name": "import importlib\nimportlib.import_module('made_up.other')",
    "by a function's name": """
        from importlib import import_module
        import_module("made_up.other")
    """,
    "by the name of its package": """
        import importlib
        def load(name):
            return importlib.import_module(f"made_up.{name}")
    """,
    "when a name is used": """
        from divisible.lazy_names import lazy_names
        get, _, _ = lazy_names(__name__, {"made_up.other": ["Thing"]})
    """,
    "when a name of a table is used": """
        from divisible.lazy_names import lazy_names
        TABLE = {"made_up.other": ["Thing"]}
        get, _, _ = lazy_names(__name__, TABLE)
    """,
}
#: Sources of a module that names no module of the package.
NONE = {
    "nothing": "",
    "a name that it does not spell": "import importlib\nimportlib.import_module(name)",
    "other packages": 'import importlib\nimportlib.import_module("numpy")',
    "a package within": """
        import importlib
        importlib.import_module(f"made_up.{folder}.other")
    """,
    "a text": 'name = "made_up.other"',
}


@pytest.fixture
def found(tmp_path):
    """Returns a function that returns the circles of a package with some sources."""

    def check(**sources):
        package = tmp_path / "made_up"
        package.mkdir()
        (package / "__init__.py").touch()
        for name, source in sources.items():
            (package / f"{name}.py").write_text(textwrap.dedent(source))
        return circles(import_graph(("made_up",), tmp_path))

    before = list(sys.path)
    yield check
    assert sys.path == before


@pytest.mark.parametrize("way", WAYS)
def test_two_modules_that_name_each_other_are_a_circle(found, way):
    there = found(one=WAYS[way], other="import made_up.one")
    assert there == [["made_up.one", "made_up.other"]]


@pytest.mark.parametrize("way", NONE)
def test_what_is_no_import_of_a_module_is_no_circle(found, way):
    assert found(one=NONE[way], other="import made_up.one") == []


def test_a_circle_goes_around_corners(found):
    there = found(
        one="import made_up.two",
        two=WAYS["for annotations"].replace("other", "three"),
        three="import importlib\nimportlib.import_module('made_up.one')",
        four="import made_up.one",
    )
    assert there == [["made_up.one", "made_up.three", "made_up.two"]]
