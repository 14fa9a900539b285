"""Runs of plans: each field of a plan is asked of the pipeline that runs it."""

import contextlib
import dataclasses

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

import data_parallel.multi_node
from data_parallel.exchange import Exchange
from divisible import (
    Disk,
    Divisible,
    LayerCost,
    Machine,
    MemoryLimitError,
    Network,
    Plan,
    Profile,
    best_plan,
    deferred_init,
)
from divisible.communication.wire import WIRE
from divisible.planning.coding import CodingRate
from divisible.planning.layer_cost import SAMPLE_BYTES, SECONDS
from divisible.planning.recomputed_layers import split_at
from divisible.planning.shares import integer_shares
from divisible.schedules.actions import RECOMPUTE
from divisible.schedules.catalogue import CATALOGUE, create
from divisible.schedules.groups import group_weights, weight_group_sizes
from divisible.schedules.recomputation import recompute
from divisible.schedules.stage_groups import group_stages, stage_group_sizes
from divisible.streaming import Streamed
from divisible.streaming.held_in_half import HeldInHalf
from pipeline import Pipeline
from pipeline.start.plan_agreement import from_rank_0
from tests.support.equivalence import assert_close

# Schedules that train as the undivided model does.
_NAMES = [name for name, entry in CATALOGUE.items() if entry.weight_versions == 1]

N_IN, N_STEPS = 6, 2


def make_model(n_layers=6):
    """A deferred model: every other layer has weights that can be on disk."""
    with deferred_init(seed=0):
        layers = [
            L.Linear(N_IN, N_IN) if i % 2 == 0 else F.tanh for i in range(n_layers)
        ]
        return Divisible(*layers)


def make_minibatch(n):
    random = np.random.RandomState(n)
    x = random.normal(size=(n, N_IN)).astype(np.float32)
    return x, random.randint(0, N_IN, n).astype(np.int32)


def serial_losses(n_layers, n_samples):
    """The losses of plain Chainer."""
    model, (x, t) = make_model(n_layers).divide(), make_minibatch(n_samples)
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    losses = []
    for _ in range(N_STEPS):
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses


@contextlib.contextmanager
def noted_exchanges():
    """Yields the dtypes and options of exchanges that optimizers are given."""
    noted = []

    def note(comm, *, exchange_dtype, **options):
        noted.append((exchange_dtype, options.get("error_feedback", False)))
        return Exchange(comm, exchange_dtype=exchange_dtype, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_parallel.multi_node, "Exchange", note)
        yield noted


def run(comm, plan, n_samples, **options):
    """Trains by a plan, whose every field is asked for; returns the losses.

    Args:
        comm: Communicator of the plan's ranks.
        plan: The plan.
        n_samples: Samples of the minibatch, of all replicas.
        **options: Options of the pipeline.
    """
    x, t = make_minibatch(n_samples)
    losses = []
    with noted_exchanges() as noted:
        model = make_model(plan.n_layers)
        with Pipeline(model, comm, plan=plan, timeout=60, **options) as pipe:
            optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
            for _ in range(N_STEPS):
                losses.append(pipe.step(*pipe.my_part(x, t))["loss"])
                optimizer.update()
            check_fields(pipe, plan, noted, n_samples)
            assert f"{plan.n_layers} layers in" in str(pipe)
    return losses


def check_fields(pipe, plan, noted, n_samples):
    """Asks a running pipeline for each field of its plan.

    A field that a plan gets later has no answer here, which fails.
    """
    for field in dataclasses.fields(Plan):
        ANSWERS[field.name](pipe, plan, noted, n_samples)
    assert pipe.plan == plan


def _made(plan):
    n_ranks = plan.n_stages // plan.stages_per_rank
    return create(plan.schedule, plan.n_stages, plan.n_microbatches, n_ranks)


def _cuts(pipe, plan, *_):
    assert list(pipe.stages) == list(_made(plan).rank_stages(pipe.rank))
    for number, stage in pipe.stages.items():
        assert stage.layer_range == plan.range(number)


def _n_microbatches(pipe, plan, *_):
    assert pipe.schedule.n_microbatches == plan.n_microbatches


def _schedule(pipe, plan, *_):
    grouped = group_stages(_made(plan), plan.stage_groups or 1)
    whole = recompute(grouped, plan.recompute)
    assert pipe.schedule == group_weights(whole, plan.weight_groups)


def _recompute(pipe, plan, *_):
    grouped = group_stages(_made(plan), plan.stage_groups or 1)
    wanted = recompute(grouped, plan.recompute).kind == RECOMPUTE
    assert (pipe.schedule.kind == RECOMPUTE).sum() == wanted.sum()


def _recomputed(pipe, plan, *_):
    """Each run, as far as it lies in a stage, is a segment of its own."""
    for stage in pipe.internals.step.stages.values():
        parts = split_at(plan.recomputed, plan.cuts)
        start, end = stage.layers.layer_range
        expected = [part for part in parts if start <= part[0] < end]
        found = [one.layers.layer_range for one in stage._segments if one.is_recomputed]
        assert found == expected


def _weight_groups(pipe, plan, *_):
    assert pipe.internals.step.current.weight_groups == plan.weight_groups
    # Where stages take several microbatches as one, groups of W may be larger.
    if not plan.stage_groups:
        sizes = weight_group_sizes(pipe.schedule)
        assert max(sizes) == min(plan.weight_groups, plan.n_microbatches)


def _stage_groups(pipe, plan, *_):
    sizes = plan.stage_groups or (1,) * plan.n_stages
    assert stage_group_sizes(pipe.schedule) == sizes


def _replicas(pipe, plan, *_):
    assert pipe.n_replicas == plan.replicas
    assert (pipe.grid is not None) == (plan.replicas > 1) == pipe.shares_minibatches


def _stages_per_rank(pipe, plan, *_):
    assert len(pipe.stages) == plan.stages_per_rank


def _layers(pipe, plan, *_):
    assert pipe.plan.layers == plan.layers


def _predicted(name):
    def check(pipe, plan, *_):
        assert getattr(pipe.plan, name) == getattr(plan, name)

    return check


def _alternatives(pipe, plan, *_):
    # Alternatives are not in force.
    assert pipe.plan.cuts == plan.cuts


def _exchange_dtype(pipe, plan, noted, *_):
    if plan.replicas > 1:
        assert [dtype for dtype, _ in noted] == [plan.exchange_dtype or "fp32"]


def _error_feedback(pipe, plan, noted, *_):
    if plan.replicas > 1:
        assert [feedback for _, feedback in noted] == [plan.error_feedback]


def _shares(pipe, plan, noted, n_samples):
    shares = plan.shares or [1] * plan.replicas
    sizes = integer_shares(shares, n_samples, int(n_samples >= plan.replicas))
    assert pipe.n_samples == sizes[pipe.replica]


def _fusion(pipe, plan, *_):
    assert tuple(pipe.fusion.chains) == tuple(plan.fusion)
    assert all(
        (s._fusion is not None) == bool(plan.fusion) for s in pipe.stages.values()
    )


def _hold_in(pipe, plan, *_):
    holds = pipe.internals.step.runner._elsewhere is not None
    is_half = plan.hold_dtype == "bfloat16"
    assert holds == (is_half or plan.hold_in[pipe.rank] == "disk")


def _hold_dtype(pipe, plan, *_):
    if plan.hold_dtype == "bfloat16":
        store = pipe.internals.step.runner._elsewhere._store
        assert isinstance(store, HeldInHalf)


def _streamed(pipe, plan, *_):
    for stage in pipe.stages.values():
        for position, layer in enumerate(stage, stage.layer_range[0]):
            assert isinstance(layer, Streamed) == (position in plan.streamed)


def _messages(pipe, plan, *_):
    for channel, sender in pipe.internals.step.runner._senders.items():
        wanted = "fp32"
        if plan.messages:
            edge = channel.stage - (not channel.is_forward)
            wanted = plan.messages[edge].pair[not channel.is_forward]
        assert (sender._wire is None) == (wanted == "fp32")
        assert sender._wire is None or sender._wire.name == wanted


#: For each field of a plan how a pipeline that runs is asked for it.
ANSWERS = {
    "cuts": _cuts,
    "n_microbatches": _n_microbatches,
    "schedule": _schedule,
    "recompute": _recompute,
    "replicas": _replicas,
    "stages_per_rank": _stages_per_rank,
    "layers": _layers,
    "stages": _predicted("stages"),
    "step_seconds": _predicted("step_seconds"),
    "bubble": _predicted("bubble"),
    "alternatives": _alternatives,
    "exchange_dtype": _exchange_dtype,
    "error_feedback": _error_feedback,
    "exchange": _predicted("exchange"),
    "shares": _shares,
    "fusion": _fusion,
    "hold_in": _hold_in,
    "hold_dtype": _hold_dtype,
    "streamed": _streamed,
    "recomputed": _recomputed,
    "weight_groups": _weight_groups,
    "stage_groups": _stage_groups,
    "messages": _messages,
    "scatter": _predicted("scatter"),
    "bound": _predicted("bound"),
    "conditions": _predicted("conditions"),
}


def random_plan(seed, most_ranks=4):
    """Returns the best plan for random layers, ranks, memories, disks and replicas.

    Returns:
        The plan, and the samples of a minibatch.
    """
    random = np.random.RandomState(seed)
    while True:
        n_layers, n_samples = random.randint(3, 9), random.randint(3, 17)
        ranks = random.randint(1, most_ranks + 1)
        replicas = int(random.choice([n for n in (1, 2, 3, 4) if ranks % n == 0]))
        profile = Profile(
            [_random_layer(random, i) for i in range(n_layers)], n_samples=n_samples
        )
        # Some layers take as long for few samples, so that groups gain.
        profiles = [profile]
        if random.rand() < 0.5:
            profiles.append(_with_one_sample(random, profile))
        whole = sum(
            2 * each.parameter_bytes + each.optimizer_bytes for each in profile.layers
        )
        whole += sum(each.activation_bytes for each in profile.layers)
        memory = whole * random.choice([0.1, 0.2, 0.3, 0.5, 1])
        if random.rand() < 0.3:
            memory = (memory * random.uniform(0.5, 1.5, ranks)).tolist()
        try:
            plan = best_plan(
                profiles,
                Machine(
                    ranks,
                    memory,
                    Network(10 ** random.uniform(6, 10), 10 ** random.uniform(-6, -3)),
                    speeds=random.choice([0.5, 1, 1, 2], ranks).tolist(),
                    disk=Disk(1e9, 1e9) if random.rand() < 0.7 else None,
                ),
                schedules=random.choice(_NAMES, 3, replace=False).tolist(),
                replicas=(replicas, replicas),
                pipeline_ranks=[ranks // replicas],
                coding=CodingRate(2e9, 4e9),
                exchange_dtype=random.choice(sorted(WIRE)),
                error_feedback=bool(random.rand() < 0.5),
            )
        except (MemoryLimitError, ValueError):
            continue
        return plan, n_samples


def _random_layer(random, position):
    """Costs of a layer of `make_model`."""
    weights = 10 ** random.randint(4, 8) if position % 2 == 0 else 0
    forward, other = random.uniform(0.5, 2, 2) * 10 ** random.uniform(-3, -1)
    return LayerCost(
        forward,
        other,
        other if weights else 0.0,
        output_bytes=int(10 ** random.uniform(3, 6)),
        activation_bytes=int(10 ** random.uniform(4, 8)),
        parameter_bytes=weights,
        optimizer_bytes=weights * random.randint(0, 3),
        streamable_bytes=weights,
        takes_groups=bool(random.rand() < 0.9),
    )


def _with_one_sample(random, profile):
    """Costs of the same layers for one sample."""

    def one(layer):
        share = random.uniform(1 / profile.n_samples, 1)
        times = {name: share * getattr(layer, name) for name in SECONDS}
        sizes = {
            name: getattr(layer, name) // profile.n_samples for name in SAMPLE_BYTES
        }
        return dataclasses.replace(layer, **times, **sizes)

    return dataclasses.replace(
        profile, layers=[one(layer) for layer in profile.layers], n_samples=1
    )


def run_random_plans(comm, first, last):
    """Runs the best plans of some seeds, and compares each with plain Chainer."""
    seen = {}
    for seed in range(first, last):
        # One rank makes it: what it measures for it differs from rank to rank.
        plan, n_samples = from_rank_0(comm, lambda _, s=seed: random_plan(s), 300)
        mine = comm.Split(0 if comm.rank < plan.n_ranks else MPI.UNDEFINED, comm.rank)
        if mine != MPI.COMM_NULL:
            losses = run(mine, plan, n_samples)
            expected = serial_losses(plan.n_layers, n_samples)
            assert_close(losses, expected, rtol=1e-5, what=f"seed {seed}: {plan}")
            mine.Free()
        for name in _features(plan):
            seen[name] = seen.get(name, 0) + 1
    if comm.rank == 0:
        print(f"{last - first} plans:", seen)


def _features(plan):
    yield plan.schedule
    yield f"{plan.n_ranks} ranks"
    for name, is_there in (
        ("replicas", plan.replicas > 1),
        ("shares", plan.shares is not None),
        ("several stages", plan.stages_per_rank > 1),
        ("recomputes", plan.recompute != "never" or bool(plan.recomputed)),
        ("holds on disk", "disk" in plan.hold_in),
        ("streams", bool(plan.streamed)),
        ("groups of W", plan.weight_groups > 1),
        ("groups of stages", bool(plan.stage_groups)),
    ):
        if is_there:
            yield name
