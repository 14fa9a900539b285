"""Pipelines whose stages run chains of layers as one function."""

from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from chainer_kernels.fusion import fusing
from chainer_kernels.fusion.chains import Normalized
from chainer_kernels.fusion.measuring import measured
from divisible import Divisible, Plan, pop, stash
from pipeline import DisagreementError, Pipeline, load_snapshot, save_snapshot
from tests.support.fusion import assert_same_bits
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks


def train(comm, chains, schedule="1f1b"):
    """Returns the losses and this rank's weights after some minibatches."""
    np.random.seed(0)
    model = Divisible(L.Linear(6, 20), F.tanh, F.dropout, L.Linear(20, 20))
    for layer in (F.dropout, F.relu, F.sigmoid, L.Linear(20, 3)):
        model.append(layer, recompute=layer is F.dropout)
    if chains:
        model.fuse(chains)
    stage = model.divide(*[(0, 3), (3, 8)][comm.rank])
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    x, t = np.random.randn(8, 6).astype("f"), np.arange(8, dtype="i") % 3
    losses = []
    with Pipeline(
        stage, comm, n_microbatches=4, schedule=schedule, recompute="except_last"
    ) as pipe:
        for _ in range(3):
            losses.append(np.float64(pipe.step(x, t)["loss"]))
            optimizer.update()
        losses.append(np.float64(pipe.evaluate(x, t)["loss"]))
    if chains:
        # One begins in the middle of a stage, or all of it is one.
        assert {chain.n_layers for chain in stage._fusion._chains.values()} & {2, 3}
    return [*losses, *(param.array for _, param in sorted(stage.namedparams()))]


def same_bits(comm, chains, schedule):
    assert_same_bits(train(comm, chains, schedule), train(comm, (), schedule))


@pytest.mark.parametrize(
    "schedule, chains",
    [
        ("1f1b", [(1, 3), (5, 7)]),
        ("zb_h1", [(0, 3), (5, 7)]),
        *matrix(("zb_h1", [(1, 3), (5, 7)]), ("1f1b", [(0, 3), (5, 7)])),
    ],
)
def test_training_has_the_same_bits_as_without(chains, schedule):
    assert_on_ranks(2, same_bits, chains, schedule)


def train_normalized(comm, fuse, recompute):
    """Returns losses, weights and running averages of layers with normalizations.

    And the loss of an evaluation, which folds these.
    """
    np.random.seed(0)
    model = Divisible(
        *(L.Convolution2D(3, 8, 3, pad=1), L.BatchNormalization(8), F.relu),
        *(L.Convolution2D(8, 8, 3, pad=1), L.BatchNormalization(8), F.relu),
        L.Linear(8 * 6 * 6, 3),
    )
    if fuse:
        model.fuse()
        model._fusion.decide({(1, 3): True, (4, 6): True})
    stage = model.divide(*CUTS_OF_NORMALIZED[comm.size][comm.rank])
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    x, t = np.random.randn(8, 3, 6, 6).astype("f"), np.arange(8, dtype="i") % 3
    losses = []
    with Pipeline(
        stage, comm, n_microbatches=2, schedule="1f1b", recompute=recompute
    ) as pipe:
        for _ in range(3):
            losses.append(np.float64(pipe.step(x, t)["loss"]))
            optimizer.update()
        evaluated = pipe.evaluate(x, t)["loss"]
    if fuse:
        chains = [each.chain for each in stage._fusion._chains.values()]
        assert sum(isinstance(each, Normalized) for each in chains) == 3 - comm.size
    links = [k for k in stage.links() if isinstance(k, L.BatchNormalization)]
    averages = [a for k in links for a in (k.avg_mean, k.avg_var)]
    assert averages and all(np.abs(a).any() for a in averages)
    params = [param.array for _, param in sorted(stage.namedparams())]
    return [*losses, *params, *averages], evaluated


CUTS_OF_NORMALIZED = {1: [(0, 7)], 2: [(0, 3), (3, 7)]}


def normalizes_alike(comm, recompute):
    found, evaluated = train_normalized(comm, True, recompute)
    expected, evaluated_one_by_one = train_normalized(comm, False, recompute)
    assert_same_bits(found, expected)
    assert evaluated == pytest.approx(evaluated_one_by_one, rel=1e-5)


@pytest.mark.parametrize(
    "n_ranks, recompute",
    [(1, "always"), (2, "never"), *matrix((1, "never"), (2, "always"))],
)
def test_a_normalization_and_its_activation_have_the_same_bits(n_ranks, recompute):
    assert_on_ranks(n_ranks, normalizes_alike, recompute)


CUTS_OF_SHORTCUTS = {1: [(0, 12)], 2: [(0, 4), (4, 12)]}


def train_shortcuts(comm, fuse, schedule, recompute):
    """Returns losses and weights of two blocks with shortcuts around them."""
    np.random.seed(0)
    model = Divisible(L.Convolution2D(3, 8, 3, pad=1))
    for name in "ab":
        model += [stash(name), L.Convolution2D(8, 8, 3, pad=1), L.BatchNormalization(8)]
        model += [pop(name, F.add), F.relu]
    model.append(L.Linear(8 * 6 * 6, 3))
    if fuse:
        model.fuse([(3, 6), (8, 11)])
    stage = model.divide(*CUTS_OF_SHORTCUTS[comm.size][comm.rank])
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    x, t = np.random.randn(8, 3, 6, 6).astype("f"), np.arange(8, dtype="i") % 3
    losses = []
    with Pipeline(
        stage, comm, n_microbatches=2, schedule=schedule, recompute=recompute
    ) as pipe:
        for _ in range(3):
            losses.append(np.float64(pipe.step(x, t)["loss"]))
            optimizer.update()
    if fuse:
        # The chain that is cut is none.
        found = [each.n_layers for each in stage._fusion._chains.values()]
        assert found.count(3) == {1: 2, 2: comm.rank}[comm.size]
    return [*losses, *(param.array for _, param in sorted(stage.namedparams()))]


def shortcuts_alike(comm, *how):
    assert_same_bits(
        train_shortcuts(comm, True, *how), train_shortcuts(comm, False, *how)
    )


@pytest.mark.parametrize("n_ranks", [2, *matrix(1)])
@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [("gpipe", "always"), ("zb_h1", "never"), *matrix(("1f1b", "never"))],
)
def test_what_is_added_past_other_layers_has_the_same_bits(
    n_ranks, schedule, recompute
):
    assert_on_ranks(n_ranks, shortcuts_alike, schedule, recompute)


WIDE = [(200, 300), F.tanh, F.relu, (300, 3), F.sigmoid, F.tanh]


def wide_model():
    np.random.seed(0)
    layers = [L.Linear(*each) if isinstance(each, tuple) else each for each in WIDE]
    return Divisible(L.Linear(6, 200), F.relu, F.tanh, *layers)


CUTS = {1: [(0, 9)], 2: [(0, 4), (4, 9)]}


def step(comm, fuse, n=3, before=None, after=None):
    stage = wide_model().divide(*CUTS[comm.size][comm.rank])
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    x = np.random.default_rng(0).normal(size=(800, 6)).astype(np.float32)
    t = np.arange(800, dtype=np.int32) % 3
    with Pipeline(stage, comm, n_microbatches=2, fuse=fuse, timeout=30) as pipe:
        if before:
            load_snapshot(before, pipe, optimizer)
        losses = []
        for _ in range(n):
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
        if after:
            save_snapshot(after, pipe, optimizer)
        chains, table = pipe.fusion.chains, str(pipe.fusion)
        said = pipe.internals.gather((chains, table), "save")
        assert all(each == said[0] for each in said)
        used = (
            [c.n_layers for c in stage._fusion._chains.values()]
            if fuse != "none"
            else []
        )
    return losses, chains, table, used


def first_minibatch_chooses(comm, folder):
    plain, chains, table, _ = step(comm, "none")
    assert chains == () and table == "fused layers: none"
    losses, chains, table, _ = step(comm, "auto", after=f"{folder}/auto")
    assert losses == plain
    # Chains lie within stages; which are faster is this machine's matter. Where one
    # that begins with a product is not, what follows may be.
    outer = {(0, 3), (6, 9), (4, 6) if comm.size == 2 else (3, 6)}
    inner = {(1, 3), (4, 6), (7, 9)}
    measured = {line.split()[0] for line in table.splitlines()[1:]}
    assert {f"{a}-{b - 1}" for a, b in outer} <= measured
    assert measured <= {f"{a}-{b - 1}" for a, b in outer | inner}
    assert {*chains} <= outer | inner
    assert len(chains) <= 3
    plan = Plan([0, 9], fusion=chains)
    losses, again, table, _ = step(comm, plan.fusion)
    assert losses == plain and again == chains
    chosen = [(1, 3), (7, 9)]
    losses, again, table, used = step(comm, chosen, after=f"{folder}/chosen")
    assert losses == plain and again == tuple(chosen)
    assert table == "fused layers: 1-2, 7-8" and 2 in used
    # A resumed run has the choice that was made, and measures nothing.
    _, again, table, _ = step(comm, "auto", 1, before=f"{folder}/chosen")
    assert again == tuple(chosen) and table == "fused layers: 1-2, 7-8"
    more, again, _, _ = step(comm, "none", 1, before=f"{folder}/chosen")
    same, again, _, _ = step(comm, "auto", 1, before=f"{folder}/auto")
    assert more == same and again == chains


@pytest.mark.parametrize("n", [2, *matrix(1)])
def test_the_first_minibatch_chooses_and_the_choice_is_kept(n, tmp_path):
    assert_on_ranks(n, first_minibatch_chooses, str(tmp_path))


def sized_at_the_first_call(comm):
    np.random.seed(0)
    layers = [L.Linear(None, 400), F.relu, F.tanh, L.Linear(None, 3)]
    stage = Divisible(*layers).divide(*[(0, 3), (3, 4)][comm.rank])
    x, t = np.ones((500, 6), np.float32), np.zeros(500, np.int32)
    with Pipeline(stage, comm, n_microbatches=1, fuse="auto") as pipe:
        pipe.step(x, t)
        assert str(pipe.fusion) == "the first minibatches choose what is fused"
        pipe.step(x, t)
        measured = {(c.start, c.end): c.is_fused for c in pipe.fusion.choices}
        # What was found before the layer had its size is a part of it.
        assert {*measured} == {(0, 3), (1, 3)}
        assert not measured[0, 3] or pipe.fusion.chains == ((0, 3),)


def test_layers_that_get_their_size_are_measured_in_the_next_minibatch():
    assert_on_ranks(2, sized_at_the_first_call)


class Labels(chainer.FunctionHook):
    """The functions that run."""

    minds_fusion = False

    def __init__(self):
        self.seen = []

    def forward_preprocess(self, function, in_data):
        self.seen.append(function.label)


def always(*arguments):
    return measured(*arguments)._replace(is_fused=True)


def what_is_chosen_runs(comm):
    stage = wide_model().divide(*CUTS[comm.size][comm.rank])
    x, t = np.ones((800, 6), np.float32), np.zeros(800, np.int32)
    with (
        mock.patch.object(fusing, "measured", always),
        Pipeline(stage, comm, n_microbatches=2, fuse="auto", timeout=30) as pipe,
    ):
        for has_chosen in (False, True):
            with Labels() as hook:
                pipe.step(x, t)
            seen = {
                each
                for labels in pipe.internals.gather(hook.seen, "save")
                for each in labels
            }
            expected = {choice.functions for choice in pipe.fusion.choices}
            assert {label for label in seen if " > " in label} == (
                expected if has_chosen else set()
            )
    assert len(expected) == 3


@pytest.mark.parametrize("n", [2, *matrix(1)])
def test_what_the_first_minibatch_has_chosen_runs_from_then_on(n):
    assert_on_ranks(n, what_is_chosen_runs)


def ranks_differ(comm):
    with pytest.raises(DisagreementError, match="fuse"):
        step(comm, "auto" if comm.rank else "none")


def test_ranks_that_fuse_differently_are_refused():
    assert_on_ranks(2, ranks_differ)


@pytest.mark.parametrize(
    "wrong", ["all", [(3, 1)], [(1, 2, 3)], 5, [("a", 2)], [(0, 2)]]
)
def test_what_is_no_chain_is_refused(wrong):
    with pytest.raises(ValueError, match="fuse must be 'auto', 'none' or chains"):
        Pipeline(Divisible(F.relu), MPI.COMM_SELF, n_microbatches=2, fuse=wrong)
