import sys

import chainer
import chainer.functions as F
import chainer.links as L
import pytest

from divisible import Divisible


def n_steps(function):
    """Counts the lines of Python and the calls that a function takes."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", ["links", "functions", "extend"])
def test_the_last_layers_are_appended_as_fast_as_the_first(kind):
    def build(n):
        layers = [F.relu if kind == "functions" else L.Linear(1, 1) for _ in range(n)]
        model, other = Divisible(), Divisible(*layers)
        if kind == "extend":
            return n_steps(lambda: model.extend(other))
        return n_steps(lambda: [model.append(layer) for layer in layers])

    assert build(400) == pytest.approx(4 * build(100), rel=0.1)


def test_a_layer_that_comes_again_keeps_the_name_of_its_first_position():
    link = L.Linear(1, 1)
    model = Divisible(F.relu, link, F.relu)
    chainer.Sequential(link)
    model.append(link)
    assert link.name == "1"
    assert [path for path, _ in model.namedparams()] == ["/1/W", "/1/b"]
    model.insert(0, link)
    assert [path for path, _ in model.namedparams()] == ["/0/W", "/0/b"]
    del model[0], model[1]
    assert [path for path, _ in model.namedparams()] == ["/2/W", "/2/b"]
    assert len(list(model.children())) == 1
