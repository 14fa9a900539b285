"""Gradients are exchanged while a step computes, and come out as after it."""

import re
from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible
from divisible.planning.shares import integer_shares
from mixed_precision import MixedPrecision, StaticLossScale, to_float16
from pipeline import Pipeline
from pipeline.command_line.main import main
from tests.support.equivalence import make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

TIMEOUT = 20
FEW_BYTES = 64


class Twice(chainer.Link):
    """Uses another layer's weights once more, in another part of the graph."""

    def __init__(self, link):
        super().__init__()
        self._link = link

    def forward(self, x):
        return F.linear(x, self._link.W)


class Forgetful(chainer.Chain):
    """Adds to gradients by itself, in the backward of a function."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l = L.Linear(6, 6)

    def forward(self, x):
        return self.l(F.forget(lambda x: F.tanh(self.l(x)), x))


def mlp():
    return Divisible(L.Linear(6, 8), F.relu, L.Linear(8, 8), F.tanh, L.Linear(8, 4))


def deep():
    return Divisible(*[L.Linear(6, 6) for _ in range(7)], L.Linear(6, 4))


def recomputed():
    """Layers 1 and 2 are a segment of their own, and share weights with others."""
    shared = L.Linear(6, 6)
    model = Divisible(shared)
    model.append(Twice(shared), recompute=True)
    model.append(L.Linear(6, 6), recompute=True)
    model.append(L.Linear(6, 6))
    model.append(L.Linear(6, 4))
    return model


def tied():
    model = Divisible(L.Linear(6, 6), F.tanh, L.Linear(6, 4), F.relu, L.Linear(4, 6))
    model.tie("/2/W", "/4/W", transpose=True)
    return model


def half():
    return to_float16(mlp())


def forgetful():
    return Divisible(L.Linear(6, 6), Forgetful(), F.relu, L.Linear(6, 4))


def normalized():
    return Divisible(L.Linear(6, 8), L.BatchNormalization(8), F.relu, L.Linear(8, 4))


def masked_loss(y, t):
    return F.sum(F.softmax_cross_entropy(y, t, reduce="no")) / len(t), len(t)


def clipped(optimizer):
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.05))
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
    return optimizer


def train(comm, make_model, sizes, shares, of_pipe, of_optimizer, mixed, overlap):
    """Trains, and returns all bits, and what was said of the exchanges."""
    options = {"n_microbatches": 3, "timeout": TIMEOUT, **of_pipe}
    with Grid(comm, 2, placement="replicas_together") as grid:
        np.random.seed(3)
        n_stages = options.pop("n_stages", 2)
        stages = stages_of(make_model(), grid, n_stages, options.get("schedule"))
        rule = chainer.optimizers.MomentumSGD(0.1)
        if mixed:
            rule = MixedPrecision(rule, comm=grid.world, loss_scale=StaticLossScale(64))
            options["loss_scale"] = rule.loss_scale
        with Pipeline(stages, grid, **options) as pipe:
            made = [
                clipped(
                    create_multi_node_optimizer(
                        rule if i == 0 else chainer.optimizers.MomentumSGD(0.1),
                        grid.data,
                        pipeline=pipe,
                        overlap=overlap,
                        timeout=TIMEOUT,
                        bucket_bytes=FEW_BYTES,
                        **of_optimizer,
                    ).setup(stage)
                )
                for i, stage in enumerate(stages)
            ]
            if len(made) == 1:
                pipe.global_hooks(made)
            losses, reports = [], []
            for x, t in make_batches(sizes, n_classes=4):
                parts = integer_shares(shares, len(x), 0)
                start = sum(parts[: grid.replica])
                mine = slice(start, start + parts[grid.replica])
                given = (x[mine], t[mine]) if parts[grid.replica] else ((), ())
                losses.append(pipe.step(*given)["loss"])
                reports.append([each.overlap_report for each in made])
                for each in made:
                    each.update()
            values = {
                path: param.array.tobytes()
                for stage in stages
                for path, param in stage.namedparams()
            }
            for each in made:
                each.close()
    return losses, values, reports


def stages_of(model, grid, n_stages, schedule):
    chunks = n_stages // grid.n_pipeline
    bounds = np.linspace(0, len(model), n_stages + 1).astype(int).tolist()
    place = grid.pipeline.rank
    return [
        model.divide(bounds[s], bounds[s + 1])
        for s in (place + i * grid.n_pipeline for i in range(chunks))
    ]


ALIKE = [1, 1]


def changes_no_bit(comm, case):
    make_model, sizes, shares, of_pipe, of_optimizer, mixed, early = case
    args = make_model, sizes, shares, of_pipe, of_optimizer, mixed
    *during, reports = train(comm, *args, None)
    *after, others = train(comm, *args, False)
    assert during[0] == after[0]
    assert during[1] == after[1]
    assert {each for some in others for each in some} == {
        "after the step: overlap=False"
    }
    assert all(each.startswith("after the step: its update") for each in reports[0])
    said = {each for some in reports[1:] for each in some}
    assert all(re.match(early, each) for each in said), said


ALL = r"during the step: (\d+) of \1 gradients"
SOME = r"during the step: (?!0 )\d+ of \d+ gradients"
CASES = {
    "1f1b": (mlp, [16, 12, 16], [1, 3], {}, {}, False, ALL),
    "ZB-H1": (mlp, [12, 7, 12], ALIKE, {"schedule": "zb_h1"}, {}, False, ALL),
    "several stages, in few bits": (
        deep,
        [12, 8, 12, 12],
        ALIKE,
        {"schedule": "interleaved", "n_stages": 4, "n_microbatches": 2},
        {
            "exchange_dtype": "int8",
            "local_size": 1,
            "minimum": 0,
            "error_feedback": True,
        },
        False,
        ALL,
    ),
    "recomputed and shared": (recomputed, [12] * 3, ALIKE, {}, {}, False, ALL),
    "all recomputed": (
        mlp,
        [12] * 3,
        ALIKE,
        {"recompute": "always"},
        {},
        False,
        ALL,
    ),
    "tied": (tied, [12, 8, 12], ALIKE, {}, {}, False, SOME),
    "float16": (half, [12, 8, 12], [2, 1], {}, {}, True, ALL),
    "batch normalization": (
        normalized,
        [12] * 3,
        ALIKE,
        {"schedule": "zb_h1"},
        {},
        False,
        SOME,
    ),
    "few samples": (mlp, [12, 1, 3, 12], ALIKE, {}, {}, False, "during the step: "),
    "gradients written by a function": (
        forgetful,
        [12] * 3,
        ALIKE,
        {},
        {},
        False,
        SOME,
    ),
    "counts that turn out late": (
        mlp,
        [12] * 3,
        ALIKE,
        {"lossfun": masked_loss},
        {},
        False,
        "after the step: how many samples lossfun counts",
    ),
}


#: Cases that repeat others with another schedule, or with more of the same.
REPEATED = ("ZB-H1", "all recomputed", "batch normalization", "few samples")


@pytest.mark.parametrize(
    "name", [*(n for n in CASES if n not in REPEATED), *matrix(*REPEATED)]
)
def test_an_exchange_during_a_step_changes_no_bit(name):
    assert_on_ranks(4, changes_no_bit, CASES[name])


def is_on_the_timeline(comm, path):
    """Looks for the exchanges of the last step, of one before, and after it."""
    x, t = np.ones((4, 6), "f"), np.zeros(4, "i")
    with Grid(comm, 2) as grid:
        (stage,) = stages_of(mlp(), grid, 2, None)
        with Pipeline(stage, grid, n_microbatches=2, timeout=TIMEOUT) as pipe:
            optimizer = optimizer_on(grid, pipe).setup(stage)
            for i in range(3):
                pipe.step(x, t)
                if i == 0:
                    assert not exchanges(pipe.timeline())
                optimizer.update()
                timeline = pipe.timeline()
                found = exchanges(timeline)
                # Of the few bytes of a bucket no two gradients have part.
                assert len(found) == sum(comm.allgather(len(list(stage.params())))) // 2
                assert {event.rank for event in found} == {0, 1}
                assert all(0 <= event.start <= event.end for event in found)
            optimizer.close()
        if comm.rank == 0:
            timeline.save(path)


def exchanges(timeline):
    return [event for event in timeline if "exchange of bucket" in str(event.what)]


def test_exchanges_are_on_the_timeline(tmp_path):
    path = tmp_path / "timeline.json"
    assert_on_ranks(4, is_on_the_timeline, str(path))
    picture = tmp_path / "timeline.png"
    result = CliRunner().invoke(main, ["timeline", str(path), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "other" in result.output
    assert picture.stat().st_size > 0


class Gate(chainer.Link):
    """Does something with gradients when it is told to."""

    does = None

    def forward(self, x):
        return Backward(self).apply((x,))[0]


class Backward(chainer.FunctionNode):
    """The identity, whose backward a gate changes."""

    def __init__(self, gate):
        self._gate = gate

    def forward(self, inputs):
        return inputs

    def backward(self, indexes, gradients):
        does = self._gate.does
        return gradients if does is None else (does(*gradients),)


def gated():
    return Divisible(L.Linear(6, 8), F.relu, L.Linear(8, 8), Gate(), L.Linear(8, 4))


def optimizer_on(grid, pipe, rule=None):
    rule = rule or chainer.optimizers.MomentumSGD(0.1)
    return create_multi_node_optimizer(
        rule, grid.data, pipeline=pipe, timeout=TIMEOUT, bucket_bytes=FEW_BYTES
    )


def overflows_on_one(comm):
    """Lets one gradient of four ranks overflow: nobody takes that step."""
    with Grid(comm, 2) as grid:
        (stage,) = stages_of(gated(), grid, 2, None)
        rule = MixedPrecision(chainer.optimizers.MomentumSGD(0.1), comm=grid.world)
        scale = rule.loss_scale
        with Pipeline(
            stage, grid, n_microbatches=2, timeout=TIMEOUT, loss_scale=scale
        ) as pipe:
            optimizer = optimizer_on(grid, pipe, rule).setup(stage)
            x, t = np.ones((4, 6), "f"), np.zeros(4, "i")
            for i in range(4):
                before = [param.array.copy() for param in stage.params()]
                if comm.rank == 3:
                    spilt = None if i != 2 else lambda gy: gy * np.float32(np.inf)
                    stage[1].does = spilt
                was = float(scale)
                pipe.step(x, t)
                optimizer.update()
                assert comm.allgather(float(scale)) == [was / 2 if i == 2 else was] * 4
                for old, param in zip(before, stage.params()):
                    assert (old == param.array).all() == (i == 2)
            assert "during the step" in optimizer.overlap_report
            optimizer.close()


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    assert_on_ranks(4, overflows_on_one)


def fails_in_a_step(comm):
    """Lets a layer fail when the exchange of others has begun."""
    with Grid(comm, 2) as grid:
        (stage,) = stages_of(gated(), grid, 2, None)
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=60)
        optimizer = optimizer_on(grid, pipe).setup(stage)
        x, t = np.ones((4, 6), "f"), np.zeros(4, "i")
        n_backwards = 0

        def fail(gy):
            nonlocal n_backwards
            n_backwards += 1
            # The first three are of samples from which shapes of messages are found.
            if n_backwards == 9:
                raise ArithmeticError("it spills")
            return gy

        if comm.rank == 3:
            stage[1].does = fail
        for _ in range(5):
            pipe.step(x, t)
            optimizer.update()


def test_a_rank_that_fails_in_the_middle_ends_all():
    output = refused_on_ranks(4, fails_in_a_step).output
    words = r"1B1 failed on rank 3 \(replica 1\).*in layer 3, Gate.*it spills"
    assert re.search(words, output, re.DOTALL), output


def leaves_updates_out(comm):
    """Takes two steps for an update, and gives another optimizer in between."""
    x, t = np.ones((4, 6), "f"), np.zeros(4, "i")
    with Grid(comm, 2) as grid:
        (stage,) = stages_of(mlp(), grid, 2, None)
        with Pipeline(stage, grid, n_microbatches=2, timeout=TIMEOUT) as pipe:
            optimizer = optimizer_on(grid, pipe).setup(stage)
            for n_steps in (1, 2, 1):
                for _ in range(n_steps):
                    pipe.step(x, t)
                optimizer.update()
            assert optimizer.t == 3
            pipe.step(x, t)
            taken = [param.grad is None for param in stage.params()]
            # What is known of the last step is not asked for twice.
            optimizer.n_samples = pipe.n_samples
            optimizer.update()
            assert all(taken)
            assert not any(param.grad is None for param in stage.params())
            optimizer.close()
            other = optimizer_on(grid, pipe).setup(stage)
            for _ in range(2):
                pipe.step(x, t)
                other.update()
            assert "during" in other.overlap_report
            assert optimizer.t == 4
            pipe.step(x, t)
            other.n_samples = 1 + pipe.n_samples
            with pytest.raises(ValueError, match="n_samples is 5, but .* of 4 samples"):
                other.update()
            other.close()


def test_a_step_without_an_update_is_dropped():
    assert_on_ranks(4, leaves_updates_out)


def write(param, gradient):
    """Writes to a parameter's gradient, in the backward of something else."""
    param.grad = param.array
    return gradient


def forgets_later(comm):
    """Writes to a gradient that is under way already."""
    with Grid(comm, 2) as grid:
        (stage,) = stages_of(gated(), grid, 2, None)
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=60)
        optimizer = optimizer_on(grid, pipe).setup(stage)
        for i in range(3):
            if i == 2 and pipe.is_last:
                stage[1].does = partial(write, stage[-1].W)
            pipe.step(np.ones((4, 6), "f"), np.zeros(4, "i"))
            optimizer.update()


def test_a_gradient_that_changes_later_is_refused():
    output = refused_on_ranks(4, forgets_later).output
    assert "after those of the last microbatch had been added up" in output, output
