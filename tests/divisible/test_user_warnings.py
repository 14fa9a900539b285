"""Warnings point at the line of a script, whatever lies between."""

import contextlib
import functools
import threading
import warnings

import pytest

from divisible.user_warnings import _BETWEEN, warn_user
from tests.support.processes import PACKAGES

CALLS = "def call(function):\n    return function()\n"
WITHIN = """
@contextmanager
def block():
    warn_user("it is slow", RuntimeWarning)
    yield

def warn():
    with block():
        pass
"""


def run_in(module, source, **names):
    """Runs a source as if it were a module; returns what it defines."""
    names["__name__"] = module
    exec(compile(source, f"/site/{module}.py", "exec"), names)
    return names


def warning_below(*modules):
    """Returns a function that warns, which modules call one within another."""
    names = {"warn_user": warn_user, "contextmanager": contextlib.contextmanager}
    function = run_in("divisible.side_files", WITHIN, **names)["warn"]
    for module in modules:
        function = functools.partial(run_in(module, CALLS)["call"], function)
    return function


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


@pytest.mark.parametrize(
    "between",
    [
        (),
        ("pipeline.step.step",),
        ("data_parallel.optimizer", "pipeline.pipeline", "chainer.training.trainer"),
    ],
)
@pytest.mark.parametrize("script", ["train", "__main__", "pipelines"])
def test_it_points_at_the_line_of_the_script(between, script, caught):
    run_in(script, "\n\ncall()\n", call=warning_below(*between))
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (f"/site/{script}.py", 3)
    assert warning.category is RuntimeWarning and str(warning.message) == "it is slow"


def test_a_function_of_the_script_that_a_package_calls_is_the_scripts(caught):
    layer = run_in("train", CALLS)["call"]
    inner = functools.partial(layer, warning_below("pipeline.stages.segment"))
    run_in("pipeline.pipeline", "call()", call=inner)
    assert [each.filename for each in caught] == ["/site/train.py"]


def test_each_line_is_warned_of_once_by_default():
    warn = warning_below("pipeline.pipeline")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run_in("train", "for _ in range(3):\n    call()\ncall()\n", call=warn)
    assert [each.lineno for each in caught] == [2, 3]


def test_it_may_be_made_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="it is slow"):
            warning_below()()


def test_a_thread_without_a_script_warns_all_the_same(caught):
    thread = threading.Thread(target=warning_below())
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_every_package_of_the_product_lies_between():
    assert set(PACKAGES) <= _BETWEEN
