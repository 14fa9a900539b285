"""The translation model of docs/howto/sequences.rst, on ranks, as serially."""

import doctest

import chainer
import numpy as np
import pytest

from divisible import Divisible
from pipeline import Pipeline
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import ROOT


def page():
    """Returns what the page defines, up to where it trains."""
    text = (ROOT / "docs" / "howto" / "sequences.rst").read_text()
    names = {}
    for example in doctest.DocTestParser().get_examples(text):
        if example.source.startswith("from mpi4py"):
            break
        exec(example.source, names)
    return names


def minibatches():
    rng = np.random.default_rng(0)

    def sentences(lengths, n_steps):
        rows = np.full((len(lengths), n_steps), -1, np.int32)
        for row, length in zip(rows, lengths):
            row[:length] = rng.integers(10, size=length)
        return rows

    for n in (8, 8, 5, 8):
        lengths = rng.integers(1, 5, size=n)
        source = sentences(rng.integers(1, 7, size=n), 6)
        yield source, sentences(lengths, 4), sentences(lengths, 4)


def build(names):
    np.random.seed(1)
    return Divisible(names["Encoder"](10, 6), names["Decoder"](10, 6))


def as_serially(comm, schedule, n_microbatches):
    names = page()
    lossfun, model = names["sum_over_words"], build(names)
    optimizer = chainer.optimizers.Adam(0.01).setup(model)
    expected = []
    for source, reads, says in minibatches():
        loss, _ = lossfun(model(source, reads), says)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        expected.append(float(loss.array))
    weights = {path: param.array for path, param in model.namedparams()}

    stage = build(names).divide(comm.rank, comm.rank + 1)
    optimizer = chainer.optimizers.Adam(0.01).setup(stage)
    options = {"lossfun": lossfun, "accfun": None, "timeout": 30}
    losses = []
    with Pipeline(
        stage, comm, n_microbatches=n_microbatches, schedule=schedule, **options
    ) as pipe:
        for source, reads, says in minibatches():
            losses.append(pipe.step((source, reads), says)["loss"])
            optimizer.update()
    assert_close(losses, expected, rtol=1e-4)
    for path, param in stage.namedparams():
        assert_close(param.array, weights[path], rtol=1e-3, atol=1e-4, what=path)


@pytest.mark.parametrize("schedule, n", [("1f1b", 4), ("zb_h1", 3)])
def test_a_translation_model_trains_on_two_ranks_as_serially(schedule, n):
    assert_on_ranks(2, as_serially, schedule, n)
