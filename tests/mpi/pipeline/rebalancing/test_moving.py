"""Layers move while a pipeline trains, and nothing of the result changes."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner

from divisible import Divisible, Plan, pop, stash
from mixed_precision import MixedPrecision, to_float16
from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot
from pipeline.command_line.main import main
from tests.support.equivalence import assert_close, make_batches, stages_of_rank
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import state_of

N_LAYERS = 13
N_STEPS = 7
BATCHES = make_batches([16, 13] * 4, n_in=8)
N_RANKS = {"1f1b": 3, "zb_h1": 3, "interleaved": 2}
N_STAGES = {"1f1b": 3, "zb_h1": 3, "interleaved": 4}


def build(tied=False):
    model = Divisible()
    for layer in (
        L.Linear(8, 8),
        L.BatchNormalization(8),
        F.dropout,
        stash("early"),
        L.Linear(8, 8),
        F.tanh,
    ):
        model.append(layer)
    model.append(L.Linear(8, 8), recompute=True)
    model.append(F.sigmoid, recompute=True)
    for layer in (pop("early"), F.add, L.Linear(8, 8), F.dropout, L.Linear(8, 4)):
        model.append(layer)
    if tied:
        model.tie("/0/W", "/10/W", transpose=True)
        model.tie("/4/W", "/6/W")
    return model


class Run:
    """A run on all ranks, whose layers may move."""

    def __init__(self, comm, schedule, tied, half, cuts):
        self.build = lambda: build(tied)
        np.random.seed(3)
        model, plan = self.build(), Plan(cuts)
        numbers = stages_of_rank(comm, plan.n_stages, schedule)
        self.stages = [model.divide(*plan.range(number)) for number in numbers]
        adam = chainer.optimizers.Adam
        scale = None
        if half:
            self.stages = [to_float16(stage) for stage in self.stages]
            optimizer = MixedPrecision(adam(0.01), loss_scale=64, comm=comm)
            self.optimizers = [optimizer.setup(self.stages)]
            scale = optimizer.loss_scale
        else:
            self.optimizers = [adam(0.01).setup(stage) for stage in self.stages]
        for optimizer in self.optimizers:
            optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
            optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.3))
        self.pipe = Pipeline(
            self.stages,
            comm,
            n_microbatches=4,
            schedule=schedule,
            timeout=30,
            loss_scale=scale,
        )
        self.pipe.global_hooks(self.optimizers)

    def step(self, i):
        x, t = BATCHES[i]
        loss = self.pipe.step(x, t)["loss"]
        for optimizer in self.optimizers:
            optimizer.update()
        return loss

    def move(self, cuts):
        return rebalance(self.pipe, self.optimizers, cuts, self.build)

    def state(self):
        """Returns all ranks' state, with that of shared parameters once."""
        found = {}
        for stage in self.stages:
            found.update(state_of(stage))
        for optimizer in self.optimizers:
            found["t"] = optimizer.t
            if hasattr(optimizer, "_masters"):
                masters = optimizer._masters.by_path()
                found.update((f"master{k}", v.copy()) for k, v in masters.items())
        together = {}
        for theirs in self.pipe.internals.gather(found, "save"):
            together.update(theirs)
        return together


def random_cuts(rng, n_stages):
    inner = rng.choice(np.arange(1, N_LAYERS), n_stages - 1, replace=False)
    return [0, *sorted(inner.tolist()), N_LAYERS]


def train(comm, schedule, tied, half, moves, restarted_at=None):
    """Returns losses and the state, of a run in which layers move at some steps.

    Instead it is begun anew there from a snapshot, if there is a path for one.
    """
    cuts = Plan.uniform(N_LAYERS, N_STAGES[schedule]).cuts
    run = Run(comm, schedule, tied, half, cuts)
    losses = []
    for i in range(N_STEPS):
        losses.append(run.step(i))
        if i in moves and restarted_at:
            save_snapshot(restarted_at, run.pipe, run.optimizers)
            run.pipe.close()
            run = Run(comm, schedule, tied, half, moves[i])
            load_snapshot(restarted_at, run.pipe, run.optimizers)
        elif i in moves:
            before = [*run.stages]
            moved = run.move(moves[i])
            assert moved.layers
            assert run.pipe.cuts == moves[i]
            assert all(a is b for a, b in zip(before, run.pipe.stages.values()))
    with run.pipe:
        evaluated = run.pipe.evaluate(*BATCHES[0])["loss"]
        return [*losses, evaluated], run.state()


def check_moves(comm, schedule, tied, half, seed, restarted_at=None):
    rng = np.random.RandomState(seed)
    steps = sorted(rng.choice(N_STEPS - 1, 3, replace=False).tolist())
    moves = {i: random_cuts(rng, N_STAGES[schedule]) for i in steps}
    others = moves if restarted_at else {}
    expected_losses, expected = train(comm, schedule, tied, half, others, restarted_at)
    losses, state = train(comm, schedule, tied, half, moves)
    assert losses == expected_losses
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(state[key], value, err_msg=key)


def runs(ordinary):
    """Gives a test each schedule with float32 and with mixed precision.

    Args:
        ordinary: For each schedule, whether the run that is not left to the matrix has
            mixed precision.
    """
    return pytest.mark.parametrize(
        "schedule, half",
        [
            pytest.param(
                schedule,
                half,
                marks=() if ordinary[schedule] == half else pytest.mark.matrix,
                id=f"{schedule}-{'mixed_precision' if half else 'adam'}",
            )
            for schedule in N_RANKS
            for half in (False, True)
        ],
    )


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.matrix)])
@runs({"1f1b": False, "zb_h1": True, "interleaved": False})
def test_a_run_equals_the_one_without_moves_bit_for_bit(schedule, half, seed):
    assert_on_ranks(N_RANKS[schedule], check_moves, schedule, False, half, seed)


@runs({"1f1b": True, "zb_h1": False, "interleaved": True})
def test_tied_layers_move_as_from_a_snapshot(tmp_path, schedule, half):
    # Where the gradients of a shared parameter are added up depends on the cut.
    path = str(tmp_path / "snapshot")
    assert_on_ranks(N_RANKS[schedule], check_moves, schedule, True, half, 5, path)


SAVED_AT = 3


def moves_and_saves(comm, half, folder):
    run = Run(comm, "1f1b", False, half, Plan.uniform(N_LAYERS, comm.size).cuts)
    losses = []
    for i in range(N_STEPS):
        losses.append(run.step(i))
        if i in (0, 2):
            run.move([0, 2, 3, N_LAYERS] if i else [0, 7, 12, N_LAYERS])
        if i == SAVED_AT:
            save_snapshot(f"{folder}/snapshot", run.pipe, run.optimizers)
    with run.pipe:
        state = run.state()
    if comm.rank == 0:
        np.savez(f"{folder}/expected.npz", losses=losses, **state)


def resumes(comm, schedule, n_stages, half, folder):
    run = Run(comm, schedule, False, half, Plan.uniform(N_LAYERS, n_stages).cuts)
    load_snapshot(f"{folder}/snapshot", run.pipe, run.optimizers)
    losses = [run.step(i) for i in range(SAVED_AT + 1, N_STEPS)]
    with run.pipe:
        state = run.state()
    with np.load(f"{folder}/expected.npz") as expected:
        assert {*state, "losses"} == {*expected}
        assert losses == expected["losses"][SAVED_AT + 1 :].tolist()
        for key, value in state.items():
            np.testing.assert_array_equal(value, expected[key], err_msg=key)


@pytest.mark.parametrize(
    "n_ranks, schedule, n_stages, half",
    [
        (2, "1f1b", 2, False),
        (2, "interleaved", 4, True),
        *(
            pytest.param(*each, half, marks=pytest.mark.matrix)
            for each in [
                (1, "1f1b", 1),
                (3, "zb_h1", 3),
                (4, "1f1b", 4),
                (4, "interleaved", 8),
                (2, "zb_v", 4),
            ]
            for half in (False, True)
        ),
    ],
)
def test_a_snapshot_after_moves_resumes_on_any_number_of_stages(
    tmp_path, n_ranks, schedule, n_stages, half
):
    assert_on_ranks(3, moves_and_saves, half, str(tmp_path))
    assert_on_ranks(n_ranks, resumes, schedule, n_stages, half, str(tmp_path))


def moves_are_drawn(comm, path):
    run = Run(comm, "1f1b", False, False, [0, 6, N_LAYERS])
    with run.pipe:
        run.step(0)
        run.move([0, 4, N_LAYERS])
        timeline = run.pipe.timeline()
        run.step(1)
        after = run.pipe.timeline()
        assert all(event.category != "other" for event in after)
    moved = [event for event in timeline if event.category == "other"]
    assert [event.rank for event in moved] == [0, 1]
    assert {event.what for event in moved} == {"move of layers 4, 5"}
    # After all that was computed.
    for event in moved:
        others = timeline.rank_events(event.rank)[:-1]
        assert event.start >= max(other.end for other in others)
    if comm.rank == 0:
        timeline.save(path)


def test_the_timeline_of_a_minibatch_ends_with_the_move(tmp_path):
    path = tmp_path / "timeline.json"
    assert_on_ranks(2, moves_are_drawn, str(path))
    result = CliRunner().invoke(main, ["timeline", str(path)])
    assert result.exit_code == 0, result.output
    assert result.output.count("move of layers 4, 5, ") == 1


def repeating():
    """Returns a model in which one link stands at two positions."""
    np.random.seed(3)
    again = L.Linear(8, 8)
    return Divisible(
        L.Linear(8, 8), F.tanh, again, F.tanh, again, F.tanh, L.Linear(8, 4)
    )


def a_repeated_link_moves(comm):
    undivided, losses, expected = repeating(), [], []
    optimizer = chainer.optimizers.Adam(0.01).setup(undivided)
    for x, t in BATCHES[:N_STEPS]:
        loss = F.softmax_cross_entropy(undivided(x), t)
        undivided.cleargrads()
        loss.backward()
        optimizer.update()
        expected.append(float(loss.array))
    stage = repeating().divide(*Plan([0, 4, 7]).range(comm.rank))
    optimizer = chainer.optimizers.Adam(0.01).setup(stage)
    # Both of its positions on one rank, and on two; its first one moves, or its second.
    moves = [[0, 3, 7], [0, 5, 7], [0, 2, 7], [0, 4, 7], [0, 6, 7], [0, 3, 7]]
    with Pipeline(stage, comm, n_microbatches=2, timeout=30) as pipe:
        for (x, t), cuts in zip(BATCHES, [*moves, None]):
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
            if cuts is not None:
                rebalance(pipe, optimizer, cuts, repeating)
    assert_close(losses, expected, rtol=1e-5)
    weights = dict(undivided.namedparams())
    for path, param in stage.namedparams():
        assert_close(param.array, weights[path].array, 1e-4, 1e-5, path)


def test_a_link_at_two_positions_moves_as_it_would_train_undivided():
    assert_on_ranks(2, a_repeated_link_moves)
