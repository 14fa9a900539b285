"""The accuracy of products in bfloat16, after very few steps."""

import numpy as np
import pytest

from benchmarks import bfloat16_accuracy
from benchmarks.bfloat16_accuracy import TASKS, train
from benchmarks.common.results import Result
from tests.support.bfloat16 import in_bfloat16

#: The largest output, which shows what an accuracy would not.
TASK = TASKS["LSTM"]._replace(metric=lambda y, t: float(np.abs(y).max()))


@in_bfloat16
def test_modes_differ_in_the_last_bits_of_products():
    single, again, narrow = (
        train(TASK, mode, 0, most_steps=2).metric
        for mode in ("float32", "float32", "products")
    )
    assert single == again != narrow
    assert narrow == pytest.approx(single, rel=0.02)


@pytest.mark.matrix
@in_bfloat16
def test_table(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "LSTM", TASK)
    result = Result("bfloat16_accuracy", tmp_path / "result.txt")
    modes = ["float32", "products"]
    bfloat16_accuracy.measure(result, "LSTM", modes, n_seeds=2, most_steps=1)
    result.save()
    rows = [line.split() for line in (tmp_path / "result.txt").read_text().splitlines()]
    (base,) = (row for row in rows if row[:1] == ["float32"])
    (narrow,) = (row for row in rows if row[:1] == ["products"])
    assert base[4:7] == ["+0.00", "+-", "0.00"]
    difference = float(narrow[1]) - float(base[1])
    assert float(narrow[4]) == pytest.approx(difference, abs=0.011)
