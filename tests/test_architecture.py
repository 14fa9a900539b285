"""What a newcomer may rely on: no circle of modules, and floors that hold."""

from tests.support.import_circles import PACKAGES, circles, import_graph


def test_no_modules_import_each_other():
    graph = import_graph()
    assert len(graph.modules) > 100
    assert circles(graph) == []


def test_a_circle_would_be_found():
    graph = import_graph()
    low, high = "divisible.schedules.actions", "divisible.schedules.schedule"
    graph.add_import(importer=low, imported=high)
    (names,) = circles(graph)
    assert {low, high} <= set(names)


def test_names_that_are_loaded_lazily_count():
    graph = import_graph()
    for package in ("divisible", "mixed_precision", "pipeline"):
        assert len(graph.find_modules_directly_imported_by(package)) > 4
    assert set(PACKAGES) <= graph.modules
