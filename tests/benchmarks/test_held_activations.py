"""The parts of the benchmark that need no emulated hosts."""

import pytest

from benchmarks import held_activations as benchmark
from divisible import Plan


@pytest.mark.parametrize("name", ["perceptron", "convolutions", "pointwise"])
def test_each_model_takes_its_minibatch(name):
    x, t = benchmark.minibatch(name, 8, 4)
    y = benchmark.make_model(name, 8, 3).divide()(x)
    assert y.shape == (4, 10) and t.shape == (4,)


def test_each_case_has_a_model_of_whole_microbatches():
    models = [*benchmark.MODELS, *(case.model for case in benchmark.CASES)]
    for *_, batch in models:
        assert all(batch % parts == 0 for parts in benchmark.PROFILED)
        assert batch % benchmark.MICROBATCHES == 0


def test_plans_in_words():
    plan = Plan([0, 2, 5], n_microbatches=4, schedule="gpipe", recompute="always")
    assert benchmark._in_words(plan) == "2 ranks, cuts [0, 2, 5]; recompute always"
    words = benchmark._in_words(benchmark._on_disk(plan))
    assert words.endswith("; held on disk by 2")
