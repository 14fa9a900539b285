"""Dictionaries pass from stage to stage."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Plan, pop, stash
from divisible.schedules import group_stages, one_f_one_b
from pipeline import Pipeline
from tests.support.equivalence import check_equal, make_batches
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks


class Name(chainer.Chain):
    """Gives names to a variable, to integers, and to an array without a gradient."""

    def __init__(self):
        super().__init__(linear=L.Linear(6, 6))

    def forward(self, x):
        signs = (x.array > 0).astype(np.int32)
        return {"h": self.linear(x), "signs": signs, "half": x.array * 0.5}


class Use(chainer.Chain):
    def __init__(self):
        super().__init__(linear=L.Linear(6, 6))

    def forward(self, named):
        assert [*named] == ["h", "signs", "half"]
        h = self.linear(named["h"]) + named["half"]
        return h, {**named, "h": h}


def join(h, named):
    return h + named["signs"].astype(np.float32) * named["h"]


def model():
    layers = [L.Linear(6, 6), Name(), stash("named"), Use(), join, L.Linear(6, 6)]
    return Divisible(*layers, pop("named", join), L.Linear(6, 4))


def every_cut(comm):
    n_layers = len(model())
    for cut in range(1, n_layers):
        for schedule, transport in (("1f1b", "mpi"), ("zb_h1", "chainermn")):
            check_equal(
                comm,
                model,
                [0, cut, n_layers],
                make_batches([8, 5, 1]),
                n_microbatches=3,
                schedule=schedule,
                transport=transport,
                recompute="always" if cut % 2 else "never",
            )


def test_every_cut():
    assert_on_ranks(2, every_cut)


def in_groups(comm):
    schedule = group_stages(one_f_one_b(comm.size, 4), [3, 2])
    for cut in (2, 4):
        cuts = [0, cut, len(model())]
        check_equal(comm, model, cuts, make_batches([8, 5]), schedule=schedule)


def test_groups_of_microbatches():
    assert_on_ranks(2, in_groups)


def wrong_key(comm):
    layers = [L.Linear(6, 6), lambda x: {3: x}, lambda x: x[3], L.Linear(6, 4)]
    stage = Divisible(*layers).divide(*Plan([0, 2, 4]).range(comm.rank))
    Pipeline(stage, comm, n_microbatches=2).step(*make_batches([4])[0])


def last_dictionary(comm):
    layers = [L.Linear(6, 6), F.tanh, L.Linear(6, 4), lambda x: {"y": x}]
    stage = Divisible(*layers).divide(*Plan([0, 2, 4]).range(comm.rank))
    Pipeline(stage, comm, n_microbatches=2).predict(make_batches([4])[0][0])


def test_what_is_refused():
    for function, words in (
        (wrong_key, ["in layer 1, ", "dictionaries with texts as keys", "keys [3]"]),
        (last_dictionary, ["in layer 3, ", "return its values as a tuple"]),
    ):
        _, output = refused_on_ranks(2, function)
        for word in words:
            assert word in output
