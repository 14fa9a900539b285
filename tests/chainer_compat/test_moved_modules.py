"""Modules that Chainer renamed are found by the names that they had."""

import importlib.util
import os
import subprocess
import sys

import pytest

from chainer_compat._moved_modules import RENAMED

SCRIPT = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from chainer.functions.activation import lstm
    from chainer.links.connection.n_step_rnn import argsort_list_descent
    import chainer.links.connection.gru
import chainer.functions.rnn.lstm, chainer.links.rnn.gru
assert lstm is chainer.functions.rnn.lstm and lstm.__spec__.name == lstm.__name__
assert argsort_list_descent(["a", "bc"]).tolist() == [1, 0]
assert chainer.links.connection.gru is chainer.links.rnn.gru
(message,) = [each for each in told if "Chainer renamed" in str(each.message)]
assert message.filename == "<string>", message.filename
print("done")
"""


@pytest.mark.parametrize("former", RENAMED)
def test_the_module_of_today_is_there_and_the_former_one_is_not(former):
    assert importlib.util.find_spec(RENAMED[former])
    assert importlib.util.find_spec(former) is None


def test_a_script_finds_them_by_both_names_and_is_told_once():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "CHAINER_COMPAT": "names"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.strip() == "done", done.stderr
