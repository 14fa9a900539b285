"""Updates that other ranks confirm later have the bits of updates that wait.

Thresholds of clippings are such that they clip in some steps only. Loss scales are so
large that gradients overflow now and then. So updates are taken back in the middle of a
run, and settings change between an update and its correction.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from mixed_precision import (
    DynamicLossScale,
    MixedPrecision,
    MomentumSGD16,
    to_float16,
)
from pipeline import (
    ActionError,
    Pipeline,
    PipelineEvaluator,
    load_snapshot,
    save_snapshot,
)
from tests.mpi.pipeline.step.test_overlap_bits import LARGE, OPTIMIZERS, masked_loss
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.overlap import deep_mlp, make

N_STEPS = 9
CLIPPING = chainer.optimizer_hooks.GradientClipping
#: Thresholds that clip, and that do not.
LOW, HIGH = 1e-2, 1e6
SCHEDULES = ("1f1b", "zb_h1", "zb_h2", "zb_v", "gpipe", "interleaved")
BEFORE = {
    "none": lambda: [],
    "decay": lambda: [chainer.optimizer_hooks.WeightDecay(1e-3)],
    "noise": lambda: [chainer.optimizer_hooks.GradientNoise(1e-3)],
}


def combination(seed, widths=(8,)):
    """Returns a schedule, a random optimizer, and random options of the run."""
    rng = np.random.RandomState(seed)
    kind = str(rng.choice(["plain", "static", "dynamic"], p=[0.5, 0.1, 0.4]))
    return {
        "schedule": SCHEDULES[seed % len(SCHEDULES)],
        "optimizer": str(rng.choice([*OPTIMIZERS])),
        "kind": kind,
        "before": str(rng.choice([*BEFORE])) if kind == "plain" else "none",
        "clips": kind == "plain" or bool(rng.uniform() < 0.5),
        "clipped": [int(i) for i in np.flatnonzero(rng.uniform(size=N_STEPS) < 0.4)],
        "between": str(rng.choice(["nothing", "confirm", "evaluate", "one rank"])),
        "width": int(rng.choice(widths)),
        "normalizes": bool(rng.uniform() < 0.4),
        "options": {
            "n_microbatches": int(rng.randint(2, 7)),
            "recompute": str(rng.choice(["never", "except_last", "always"])),
            "weight_groups": int(rng.choice([1, 2])),
            "deferred_batch_norm": bool(rng.uniform() < 0.5),
        },
    }


@pytest.mark.parametrize("n_ranks", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_updates_that_are_taken_back_leave_no_bit(n_ranks):
    runs = [combination(60 * n_ranks + i) for i in range(len(SCHEDULES))]
    # The loss counts samples when it has seen the outputs.
    runs[-1]["options"]["lossfun"] = masked_loss
    assert_on_ranks(n_ranks, _compare_runs, runs, timeout=200)


@pytest.mark.matrix
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_random_updates_that_are_taken_back_leave_no_bit(n_ranks):
    seeds = range(600 * n_ranks, 600 * n_ranks + 24)
    runs = [combination(seed, (8, 8, 8, LARGE)) for seed in seeds]
    assert_on_ranks(n_ranks, _compare_runs, runs, timeout=400)


def _compare_runs(comm, runs):
    n_taken_back = 0
    for run in runs:
        late, counts = _train(comm, True, **run)
        waiting, _ = _train(comm, False, **run)
        # In texts, NaN of a loss that diverges equals NaN.
        unlike = [name for name in waiting if repr(late[name]) != repr(waiting[name])]
        assert comm.allgather(unlike) == [[]] * comm.size, (run, unlike)
        assert comm.allgather(counts) == [counts] * comm.size, run
        n_taken_back += counts[1]
    assert n_taken_back > len(runs)


def _model(width, normalizes, kind):
    model = deep_mlp(width)
    if normalizes:
        model = Divisible(
            L.Linear(width, width),
            L.BatchNormalization(width),
            chainer.functions.dropout,
            *(L.Linear(width, width) for _ in range(9)),
            L.BatchNormalization(width),
            chainer.functions.dropout,
            L.Linear(width, 4),
        )
    return model if kind == "plain" else to_float16(model)


def _optimizer(comm, kind, optimizer):
    rule = OPTIMIZERS[optimizer]()
    if kind == "plain":
        return rule
    if optimizer == "AdaDelta":
        rule = MomentumSGD16(0.01)
    scale = 1024.0
    if kind == "dynamic":
        scale = DynamicLossScale(2.0**20, growth_interval=2, factor=4)
    return MixedPrecision(rule, comm=comm, loss_scale=scale)


def bits(pipe, optimizer):
    """Returns everything that updates and forwards change on this rank."""
    found = [optimizer.t]
    for number, stage in sorted(pipe.stages.items()):
        for path, param in sorted(stage.namedparams()):
            rule = param.update_rule
            state = {k: np.array(v).tobytes() for k, v in (rule.state or {}).items()}
            found += [number, path, param.array.tobytes(), rule.t, state]
        for path, link in sorted(stage.namedlinks()):
            for name in sorted(link._persistent):
                value = vars(link)[name]
                found += [path, name, np.array(value).tobytes()]
    if isinstance(optimizer, MixedPrecision):
        masters = optimizer.masters()
        found += [float(optimizer.loss_scale), optimizer.n_skipped]
        found += [optimizer.gradient_norm]
        found += [(path, masters[path].tobytes()) for path in sorted(masters)]
    return found


def _train(
    comm,
    overlap,
    schedule,
    optimizer,
    kind,
    before,
    clips,
    clipped,
    between,
    width,
    normalizes,
    options,
):
    """Returns what a run computed, by name; and its numbers of updates."""
    rule = _optimizer(comm, kind, optimizer)
    options = {**options, "overlap_minibatches": overlap}
    if kind != "plain":
        options["loss_scale"] = rule.loss_scale
    np.random.seed(0)
    model = _model(width, normalizes, kind)
    pipe, optimizer = make(comm, schedule, model, rule, **options)
    for hook in BEFORE[before]():
        optimizer.add_hook(hook)
    clipping = CLIPPING(HIGH)
    if clips:
        optimizer.add_hook(clipping)
    found = {"results": [], "between": []}
    sizes = [n * width // 8 for n in (12, 12, 7, 12, 12, 12, 9, 12, 12)]
    for i, (x, t) in enumerate(make_batches(sizes, n_in=width)):
        clipping.threshold = LOW if i in clipped else HIGH
        if "lossfun" in options:
            t[::3] = -1
        found["results"].append(pipe.step(x, t))
        optimizer.update()
        if hasattr(optimizer.hyperparam, "lr"):
            optimizer.lr *= 0.9
        if i % 2 and between == "evaluate":
            found["between"].append(pipe.evaluate(x, t))
        if between == "confirm" or (between == "one rank" and pipe.is_first):
            pipe.confirm_update()
        if between not in ("nothing", "one rank") and i % 2:
            found["between"].append(bits(pipe, optimizer))
    found["results"] = [dict(each) for each in found["results"]]
    found["evaluated"] = pipe.evaluate(x, t)
    found["state"] = bits(pipe, optimizer)
    counts = 0, 0
    if overlap:
        late = pipe.internals.step.confirming.late
        counts = late.n_updates, late.n_taken_back
        assert f"{counts[0]}, of which {counts[1]} were taken back" in str(pipe)
    pipe.close()
    return found, counts


def clipped_run(comm, clipped, overlap=True, schedule="zb_h2", **options):
    """Yields a pipeline before each step, with its optimizer, x and t."""
    pipe, optimizer = make(comm, schedule, overlap_minibatches=overlap, **options)
    clipping = CLIPPING(HIGH)
    optimizer.add_hook(clipping)
    for i, (x, t) in enumerate(make_batches([8] * N_STEPS, n_in=8)):
        clipping.threshold = LOW if i in clipped else HIGH
        yield pipe, optimizer, x, t
        optimizer.update()


def test_snapshots_in_between_have_the_right_state(tmp_path):
    assert_on_ranks(2, _save_and_load, str(tmp_path))


def _save_and_load(comm, directory):
    """A run goes on from snapshots that were saved after updates that were wrong.

    The first update makes the arrays of the optimizer, and makes others if it is wrong.
    """
    losses = {}
    for overlap in (True, False):
        losses[overlap] = []
        rule = chainer.optimizers.Adam(0.01)
        run = clipped_run(comm, [0, 2, 5], overlap, rule=rule)
        for i, (pipe, optimizer, x, t) in enumerate(run):
            if i in (1, 3):
                where = f"{directory}/{overlap}"
                save_snapshot(where, pipe, optimizer)
                load_snapshot(where, pipe, optimizer)
            losses[overlap].append(pipe.step(x, t))
        losses[overlap].append(bits(pipe, optimizer) if pipe.close() is None else 0)
        losses[overlap][:-1] = [dict(each) for each in losses[overlap][:-1]]
    assert losses[True] == losses[False]


def test_an_update_that_follows_an_update_continues_from_the_right_one():
    assert_on_ranks(2, _update_twice)


def _update_twice(comm):
    def run(overlap):
        for pipe, optimizer, x, t in clipped_run(comm, [2, 5, N_STEPS - 1], overlap):
            result = pipe.step(x, t)
            optimizer.update()
        pipe.confirm_update()
        found = dict(result), bits(pipe, optimizer)
        pipe.close()
        return found

    expected = run(False)
    assert run(True) == expected
    # A script may train in a thread.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run, True).result() == expected


def test_gradients_after_an_update_are_added_to_those_of_the_right_one():
    assert_on_ranks(2, _accumulate_after_updates)


def _accumulate_after_updates(comm):
    """A clipping changes gradients, to which the next step adds."""
    found = []
    for overlap in (True, False):
        for i, step in enumerate(clipped_run(comm, [0, 2, 5], overlap)):
            pipe, optimizer, x, t = step
            result = pipe.step(x, t, accumulate=i > 0)
        pipe.confirm_update()
        found.append((dict(result), bits(pipe, optimizer)))
        pipe.close()
    assert found[0] == found[1]


def test_hooks_of_evaluators_find_the_right_update():
    assert_on_ranks(2, _evaluate_with_a_hook)


def _evaluate_with_a_hook(comm):
    found = []
    for overlap in (True, False):
        seen = []
        for pipe, optimizer, x, t in clipped_run(comm, [1, 4], overlap):
            seen.append(_evaluated(pipe, optimizer))
            pipe.step(x, t)
        pipe.close()
        found.append(seen)
    assert found[0] == found[1]


def _evaluated(pipe, optimizer):
    """Returns the results of an evaluator, and the bits that its hook has found."""
    seen, samples = [], [(np.ones(8, np.float32), np.int32(0))] * 4
    iterator = chainer.iterators.SerialIterator(samples, 4, repeat=False)
    evaluator = PipelineEvaluator(
        iterator, pipe, eval_hook=lambda _: seen.append(bits(pipe, optimizer))
    )
    return evaluator(), seen


def test_an_optimizer_goes_on_without_the_pipeline_and_with_another():
    assert_on_ranks(2, _change_pipelines)


def _change_pipelines(comm):
    batches, found = make_batches([8] * 6, n_in=8), []
    for overlap in (True, False):
        rule, scale = chainer.optimizers.MomentumSGD(0.1), DynamicLossScale(2.0**10)
        optimizer = MixedPrecision(rule, comm=comm, loss_scale=scale)
        np.random.seed(0)
        model = to_float16(deep_mlp())
        options = {"loss_scale": scale}
        pipe, _ = make(
            comm, "zb_h2", model, optimizer, overlap_minibatches=overlap, **options
        )
        for x, t in batches[:3]:
            pipe.step(x, t)
            optimizer.update()
        pipe.step(x, t)
        pipe.close()
        if comm.rank == 0:
            # All ranks skip this update.
            next(optimizer.target.params()).grad[...] = np.inf
        optimizer.update()
        assert not overlap or pipe.internals.step.confirming.late.n_updates == 3
        stages = [*pipe.stages.values()]
        options |= {"schedule": "zb_h2", "n_microbatches": 4, "timeout": 60}
        with Pipeline(stages, comm, **options) as pipe:
            pipe.global_hooks(optimizer)
            for x, t in batches[3:]:
                pipe.step(x, t)
                optimizer.update()
            found.append(bits(pipe, optimizer))
    assert found[0] == found[1]


def test_after_two_wrong_updates_they_wait_until_one_is_right():
    assert_on_ranks(2, _wait_after_two)


def _wait_after_two(comm):
    late, seen = None, []
    for pipe, _, x, t in clipped_run(comm, [1, 2, 3, 4]):
        late = pipe.internals.step.confirming.late
        pipe.step(x, t)
        seen.append((late.is_wanted, late.n_taken_back))
    # The update after step i is decided about at the end of step i.
    wanted = [True, True, True, False, False, False, True, True, True]
    assert [each for each, _ in seen] == wanted
    assert seen[-1] == (True, 2)
    pipe.close()


class Picky(chainer.Link):
    """Fails in some calls."""

    fails = False

    def forward(self, x):
        if self.fails:
            raise ArithmeticError("too large")
        return x


def test_an_error_with_wrong_parameters_does_not_count():
    assert_on_ranks(3, _fail_with_wrong_parameters)


def _fail_with_wrong_parameters(comm):
    """On each rank in turn, a forward fails that would not with right parameters."""
    found = []
    for failing in (None, 0, 1, 2):
        np.random.seed(0)
        layers = [
            layer
            for _ in range(3)
            for layer in (Picky(), L.Linear(8, 8), L.Linear(8, 8))
        ]
        model = Divisible(*layers[:-1], L.Linear(8, 4))
        for i, step in enumerate(clipped_run(comm, [3, 6], model=model)):
            pipe, optimizer, x, t = step
            (stage,) = pipe.internals.step.stages.values()
            (picky,) = [x for x in stage.layers.links() if isinstance(x, Picky)]
            late = pipe.internals.step.confirming.late
            picky.fails = i in (4, 7) and comm.rank == failing
            if picky.fails:
                put_back = late.copies.put_back

                def put_back_once(picky=picky, put_back=put_back):
                    picky.fails = False
                    return put_back()

                late.copies.put_back = put_back_once
            result = pipe.step(x, t)
        assert late.n_taken_back == 2
        found.append((dict(result), bits(pipe, optimizer)))
        pipe.close()
    assert found[1:] == found[:1] * 3


def test_an_error_with_right_parameters_counts():
    assert_on_ranks(2, _fail_with_right_parameters)


def _fail_with_right_parameters(comm):
    model = Divisible(Picky(), *(L.Linear(8, 8) for _ in range(3)), L.Linear(8, 4))
    run = clipped_run(comm, [], model=model)
    for _ in range(2):
        pipe, _, x, t = next(run)
        pipe.step(x, t)
    next(run)
    if pipe.is_first:
        (stage,) = pipe.stages.values()
        next(x for x in stage.links() if isinstance(x, Picky)).fails = True
        with pytest.raises(ActionError, match="too large.*in step 3"):
            pipe.step(x, t)
    comm.Barrier()


class Unknown:
    """A hook that may do anything."""

    name, call_for_each_param, timing = "Unknown", True, "pre"

    def __call__(self, rule, param):
        pass


def _with_hook(comm):
    pipe, optimizer = make(comm, overlap_minibatches=True)
    optimizer.add_hook(Unknown())
    optimizer.add_hook(CLIPPING(1.0))
    return pipe


def _twice(comm):
    pipe, optimizer = make(comm, overlap_minibatches=True)
    optimizer.add_hook(CLIPPING(1.0), "first")
    optimizer.add_hook(CLIPPING(0.1), "second")
    return pipe


def _blocking(comm):
    pipe, optimizer = make(comm, overlap_minibatches=True, transport="chainermn")
    optimizer.add_hook(CLIPPING(1.0))
    return pipe


def _foreign_scale(comm):
    scale = DynamicLossScale()
    return make(comm, overlap_minibatches=True, loss_scale=scale)[0]


REFUSED = {
    "GradientClipping and the hook Unknown": _with_hook,
    "GradientClipping and several GradientClippings": _twice,
    "GradientClipping and transport='chainermn'": _blocking,
    "loss_scale and a loss scale of no optimizer": _foreign_scale,
}


def test_what_cannot_be_confirmed_late_is_refused():
    assert_on_ranks(2, _refuse)


def _refuse(comm):
    x, t = make_batches([8], n_in=8)[0]
    for words, make_pipe in REFUSED.items():
        with pytest.raises(ValueError, match=f"does not go together with {words}"):
            make_pipe(comm).step(x, t)
        comm.Barrier()
