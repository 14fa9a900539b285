"""All loops are compiled: those of kernels and those of update rules."""

from chainer_kernels import all_loops, chainer_rules, compiling


def test_compile_all_knows_the_update_rules(monkeypatch):
    monkeypatch.setattr(compiling.Loop, "compiled", None)
    names = {each.__name__ for each in all_loops.compile_all()}
    assert {"relu", "gather"} <= names
    assert {f"{formula.__name__}_arrays" for formula in chainer_rules.FORMULAS} <= names
