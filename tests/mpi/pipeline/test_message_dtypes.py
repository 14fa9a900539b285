"""A pipeline with narrow messages trains as a serial model that rounds at its edges."""

import itertools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.common.rounded import Rounded
from divisible import Divisible, Plan, pop, stash
from divisible.planning.message_plan import MessagePlan
from pipeline import Pipeline
from tests.support.equivalence import make_batches, set_up, stages_of_rank
from tests.support.mpiexec import assert_on_ranks
from tests.support.planned_runs import ANSWERS

PAIRS = [("fp16", "fp16"), ("int8", "bf16"), ("e4m3", "e5m2"), ("int4", "fp32")]


def mlp():
    return [L.Linear(6, 40), F.relu, L.Linear(40, 30), F.tanh, L.Linear(30, 4)]


def convolutions():
    return [
        lambda x: F.reshape(x, (-1, 1, 2, 3)),
        L.Convolution2D(1, 5, 3, pad=1),
        L.BatchNormalization(5),
        F.relu,
        L.Convolution2D(5, 7, 3, pad=1),
        L.Linear(42, 4),
    ]


def serial(layers, cuts, pairs):
    """The same model in one stage, with a layer at each cut that rounds."""
    rounding = {cut: Rounded(*pair) for cut, pair in zip(cuts[1:-1], pairs)}
    found = []
    for position, layer in enumerate(layers):
        found += [rounding[position]] if position in rounding else []
        found.append(layer)
    return Divisible(*found)


def train(stages, comm, batches, **options):
    optimizers = [set_up(stage, 0.1) for stage in stages]
    losses = []
    with Pipeline(stages, comm, timeout=60, **options) as pipe:
        for x, t in batches:
            losses.append(pipe.step(x, t)["loss"])
            for optimizer in optimizers:
                optimizer.update()
        losses.append(pipe.evaluate(*batches[0])["loss"])
    params = [p.array for stage in stages for _, p in sorted(stage.namedparams())]
    return losses, params


def as_the_serial_model_that_rounds(comm, make, pairs, **options):
    batches = make_batches([8, 8, 5, 2, 8])
    n_stages = comm.size * (2 if options.get("schedule") == "zb_v" else 1)
    cuts = Plan.uniform(len(make()), n_stages).cuts
    numbers = stages_of_rank(comm, n_stages, options.get("schedule"))
    np.random.seed(3)
    model = Divisible(*make())
    stages = [model.divide(*Plan(cuts).range(i)) for i in numbers]
    losses, params = train(stages, comm, batches, n_microbatches=3, **options)
    np.random.seed(3)
    whole = serial(make(), cuts, pairs)
    expected, everything = train([whole], MPI.COMM_SELF, batches, n_microbatches=3)
    assert losses == expected, (pairs, options)
    theirs = comm.allgather([array.tobytes() for array in params])
    found = sorted(itertools.chain(*theirs))
    assert found == sorted(array.tobytes() for array in everything)


def every_pair(comm):
    for pair, make in itertools.product(PAIRS, (mlp, convolutions)):
        pairs = [pair] * (comm.size - 1)
        options = {"message_dtype": pair if len({*pair}) == 2 else pair[0]}
        as_the_serial_model_that_rounds(comm, make, pairs, **options)


def fp32_narrows_nothing(comm):
    def losses(**options):
        np.random.seed(0)
        with chainer.using_config("dtype", np.float64):
            model = Divisible(*mlp())
        stage = model.divide(*[(0, 2), (2, None)][comm.rank])
        with Pipeline(stage, comm, n_microbatches=2, **options) as pipe:
            return pipe.step(np.ones((4, 6)) / 3, np.arange(4))["loss"]

    exact = losses()
    for transport in ("mpi", "chainermn"):
        assert losses(message_dtype="fp32", transport=transport) == exact


def one_edge(comm):
    every_pair(comm)
    fp32_narrows_nothing(comm)


def test_one_edge():
    assert_on_ranks(2, one_edge, timeout=120)


def every_schedule(comm):
    pair = "int8", "bf16"
    for schedule in ("gpipe", "1f1b", "zb_h1"):
        options = {"schedule": schedule, "message_dtype": pair, "recompute": "always"}
        as_the_serial_model_that_rounds(comm, mlp, [pair] * (comm.size - 1), **options)


def test_several_edges_and_schedules():
    assert_on_ranks(4, every_schedule, timeout=120)


def as_planned(comm):
    """Each edge has its own dtypes, and the middle one of a V sends nothing."""
    cuts, n = [0, 1, 3, 4, 5], 3
    messages = [MessagePlan("int8", "bf16"), MessagePlan(), MessagePlan("bf16", "int8")]
    plan = Plan(cuts, n, "zb_v", stages_per_rank=2, messages=messages)
    batches = make_batches([8, 8, 5])
    np.random.seed(3)
    model = Divisible(*mlp())
    optimizer, losses = None, []
    with Pipeline(model, comm, plan=plan, timeout=60) as pipe:
        assert pipe.plan.messages == plan.messages
        ANSWERS["messages"](pipe, plan)
        assert "messages between stages 2 and 3: bf16 forward, int8" in str(pipe)
        optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
        for x, t in batches:
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
    np.random.seed(3)
    whole = serial(mlp(), cuts, [each.pair for each in messages])
    expected, _ = train([whole], MPI.COMM_SELF, batches, n_microbatches=n)
    assert losses == expected[:-1]


def test_edges_of_a_plan():
    assert_on_ranks(2, as_planned)


def over_skips(comm):
    """A skip past the second stage has the dtypes with the fewest bits on its way."""
    messages = [MessagePlan("fp32", "int8"), MessagePlan("int8", "bf16")]
    plan = Plan([0, 2, 3, 5], 2, "1f1b", messages=messages)
    layers = [L.Linear(6, 9), L.Linear(9, 9), L.Linear(9, 4)]
    batches = make_batches([8, 6])

    def make():
        np.random.seed(3)
        return [link.copy(mode="init") for link in layers]

    first, second, third = make()
    losses = []
    model = Divisible(first, stash("a"), second, pop("a", F.add), third)
    with Pipeline(model, comm, plan=plan, timeout=60) as pipe:
        optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
        for x, t in batches:
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
    first, second, third = make()
    skip = Rounded("int8", "int8")
    whole = Divisible(
        first,
        stash("a"),
        Rounded(*messages[0].pair),
        second,
        Rounded(*messages[1].pair),
        pop("a", lambda x, y: x + skip(y)),
        third,
    )
    expected, _ = train([whole], MPI.COMM_SELF, batches, n_microbatches=2)
    assert losses == expected[:-1]


def test_skip_connections():
    assert_on_ranks(3, over_skips)


def with_infinity(comm):
    """A number that is not finite crosses an edge as it is; the next steps go on."""
    cuts = Plan.uniform(5, comm.size).cuts
    batches = make_batches([6, 6, 6])
    batches[1][0][0, 0] = np.inf
    np.random.seed(3)
    stage = Divisible(*mlp()).divide(*Plan(cuts).range(comm.rank))
    with Pipeline(stage, comm, n_microbatches=3, message_dtype="int8") as pipe:
        losses = [pipe.step(x, t)["loss"] for x, t in batches]
    assert np.isfinite(losses).tolist() == [True, False, True]


def test_numbers_that_are_not_finite_stay_so():
    assert_on_ranks(2, with_infinity)


def changed_besides(comm):
    messages = [MessagePlan("int8", "int8")]
    plan = Plan([0, 2, 5], 2, "1f1b", messages=messages)
    with pytest.warns(UserWarning, match="message_dtype is 'bf16' .int8 in the plan"):
        if comm.rank:
            # Rank 0 warns for all.
            import warnings

            warnings.warn("message_dtype is 'bf16' (int8 in the plan)", stacklevel=1)
        pipe = Pipeline(Divisible(*mlp()), comm, plan=plan, message_dtype="bf16")
    assert pipe.plan.messages == (MessagePlan("bf16", "bf16"),)
    pipe.close()


def test_a_given_dtype_takes_precedence_over_the_plan():
    assert_on_ranks(2, changed_besides)
