"""Layers that a plan, or a script, has recomputed change no bit."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import Pipeline
from pipeline.stages.held import Inputs
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

N_STEPS, CUTS = 2, [0, 4, 9]
#: Parts of stages, whole stages, runs across the cut, runs that touch, and a mark.
WAYS = [
    [1],
    [(0, 4), (4, 9)],
    [2, 3, 4, 5],
    [(1, 2), (2, 4), (6, 9)],
    [np.int64(7), 8],
]


def model(marked=()):
    np.random.seed(0)
    made = Divisible()
    layers = [
        L.Linear(6, 12),
        L.BatchNormalization(12),
        F.relu,
        F.dropout,
        L.Linear(12, 12),
        F.tanh,
        L.BatchNormalization(12),
        F.dropout,
        L.Linear(12, 3),
    ]
    for i, layer in enumerate(layers):
        made.append(layer, recompute=i in marked)
    return made


def trained(comm, **options):
    """Returns gradients, parameters, averages and losses after some steps."""
    random = np.random.RandomState(1)
    if "plan" not in options:
        options = {"n_microbatches": 4, **options}
    pipe = Pipeline(options.pop("model", None) or model(), comm, **options)
    optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
    found = []
    for _ in range(N_STEPS):
        x = random.normal(size=(10, 6)).astype(np.float32)
        t = random.randint(0, 3, 10).astype(np.int32)
        found.append(dict(pipe.step(x, t)))
        for stage in pipe.stages.values():
            for path, param in sorted(stage.namedparams()):
                found.append((path, param.grad.tobytes()))
            for path, link in sorted(stage.namedlinks()):
                for name in link._persistent:
                    found.append((path, np.asarray(getattr(link, name)).tobytes()))
        optimizer.update()
    return pipe, found


def alike(comm, schedule):
    plan = Plan(CUTS, 4, schedule) if comm.size == 2 else None
    given = {"schedule": schedule} if plan is None else {"plan": plan}
    plain, expected = trained(comm, **given)
    plain.close()
    for way in WAYS:
        pipe, found = trained(comm, recompute=way, **given)
        assert found == expected, way
        runs = pipe.plan.recomputed
        assert "recomputed layers: " in str(pipe)
        pipe.close()
        if plan is not None:
            again = Plan(CUTS, 4, schedule, recomputed=runs)
            pipe, found = trained(comm, plan=again)
            assert found == expected and pipe.plan == again
            # A word takes precedence.
            pipe.close()
            with (
                pytest.warns(UserWarning, match="recomputed is")
                if not comm.rank
                else (chainer.using_config("debug", False))
            ):
                pipe, found = trained(comm, plan=again, recompute="never")
            assert found == expected and pipe.plan.recomputed == ()
            pipe.close()


@pytest.mark.parametrize("n_ranks", [2, *matrix(1)])
def test_gradients_have_the_same_bits(n_ranks):
    schedules = ("1f1b", "zb_h1") if n_ranks == 2 else ("gpipe",)
    for schedule in schedules:
        assert_on_ranks(n_ranks, alike, schedule)


def test_only_the_inputs_of_a_run_are_held():
    made = model()
    pipe, _ = trained(MPI.COMM_SELF, model=made, schedule="gpipe", recompute=[1, 2, 5])
    (stage,) = pipe.internals.step.stages.values()
    kinds = []
    backward = stage.backward

    def watched(microbatch, *args, **kwargs):
        held = [one.held[microbatch] for one in stage._segments]
        kinds.append([isinstance(each, Inputs) for each in held])
        return backward(microbatch, *args, **kwargs)

    stage.backward = watched
    pipe.step(np.ones((8, 6), np.float32), np.zeros(8, np.int32))
    assert kinds == [[False, True, False, True, False]] * 4
    # The model of the script has no marks.
    assert not any(made.recomputed)


@pytest.mark.parametrize(
    "way, error, message",
    [
        ([9], ValueError, "of 9 layers"),
        ([1, (1, 3)], ValueError, "layer 1 in two runs"),
        ([1.5], TypeError, "chain 0 of recompute must be a list"),
        ("often", ValueError, "recompute must be one of never"),
        ([(2, "x")], TypeError, "chain 0 of recompute must be an integer"),
    ],
)
def test_layers_that_do_not_exist(way, error, message):
    with pytest.raises(error, match=message):
        Pipeline(model(), MPI.COMM_SELF, n_microbatches=2, recompute=way)
