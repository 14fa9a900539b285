"""One rank prints."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import training_script


def test_prints_in_a_row_have_one_condition():
    before = "print(1)\nprint('''a\nb''',\n      2)\nx = 1\nfor i in y: print(i)"
    text = port(training_script(before=before)).text
    assert (
        "if comm.rank == 0:\n    print(1)\n    print('''a\nb''',\n          2)\nx = 1\n"
        "for i in y: print(i)\n"
    ) in text


def test_what_asks_for_the_rank_already_stays():
    before = "if rank == 0:\n    print(1)\nclass C:\n    def f(self):\n        print(2)"
    assert before in port(training_script(before=before)).text


@pytest.mark.parametrize(
    "after, end",
    [
        ("", "print(model.predictor(x).array)"),
        ("e = extensions.Evaluator(test_iter, model)", "print(e())"),
        (
            "def f(x):\n    return g(x)\ndef g(x):\n    return model.predictor(x)",
            "print(f(x).array)",
        ),
        ("", "print(np.random.rand(), next(test_iter))"),
    ],
)
def test_what_all_ranks_compute_is_printed_by_all(after, end):
    text = port(training_script(after=after, end=end)).text
    assert "comm.rank == 0" not in text
