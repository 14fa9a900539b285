"""Invariant 1: a pipeline trains as the undivided model does."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from divisible import Divisible, Plan
from divisible.schedules.catalogue import ONE_PER_RANK
from pipeline import Pipeline
from tests.support.equivalence import (
    N_STEPS,
    STAGES_PER_RANK,
    assert_close,
    check_equal,
    make_batches,
    tuple_model,
)
from tests.support.examples import examples
from tests.support.mpiexec import assert_on_ranks


def mlp():
    return Divisible(
        L.Linear(6, 8),
        F.relu,
        L.Linear(8, 7),
        F.tanh,
        L.Linear(7, 7),
        F.relu,
        L.Linear(7, 4),
    )


def every_cut(comm):
    """All cuts of the model into as many stages as there are ranks."""
    n_layers = len(mlp())
    batches = make_batches([8] * N_STEPS)

    def cuts(n_stages, start=0):
        if n_stages == 1:
            yield [n_layers]
            return
        for cut in range(start + 1, n_layers - n_stages + 2):
            for rest in cuts(n_stages - 1, cut):
                yield [cut, *rest]

    for tail in cuts(comm.size):
        check_equal(comm, mlp, [0, *tail], batches, n_microbatches=3)


@pytest.mark.parametrize(
    "n_ranks",
    [
        1,
        2,
        *(pytest.param(n, marks=pytest.mark.matrix) for n in (3, 4)),
    ],
)
def test_every_cut(n_ranks):
    assert_on_ranks(n_ranks, every_cut)


def deep_mlp():
    return Divisible(*[L.Linear(6, 6) for _ in range(7)], L.Linear(6, 4))


def schedules_and_counts(comm, transport, counts, turns=1):
    """Every schedule with some numbers of microbatches.

    Of several turns, each schedule has one: every so many of the numbers.
    """
    # A last batch that is smaller, then one smaller than n_microbatches.
    batches = make_batches([8, 8, 5, 2, 8])
    for number, (schedule, per_rank) in enumerate(STAGES_PER_RANK.items()):
        cuts = Plan.uniform(8, per_rank * comm.size).cuts
        for n_microbatches in counts[number % turns :: turns]:
            check_equal(
                comm,
                deep_mlp,
                cuts,
                batches,
                n_microbatches=n_microbatches,
                schedule=schedule,
                transport=transport,
            )


@pytest.mark.parametrize(
    "n_ranks, turns",
    [
        (1, 2),
        *(pytest.param(n, 1, marks=pytest.mark.matrix) for n in (1, 2, 3, 4)),
        (4, 4),
    ],
)
def test_schedules_and_microbatch_counts(n_ranks, turns):
    """With one microbatch, an even and an uneven number, and more than samples."""
    arguments = "mpi", [1, 3, 4, 9], turns
    assert_on_ranks(n_ranks, schedules_and_counts, *arguments, timeout=120)


@pytest.mark.parametrize(
    "n_ranks, counts",
    [
        (2, [3]),
        pytest.param(3, [1, 4, 9], marks=pytest.mark.matrix),
        pytest.param(4, [3, 4], marks=pytest.mark.matrix),
    ],
)
def test_schedules_over_one_sided_messages(n_ranks, counts):
    assert_on_ranks(n_ranks, schedules_and_counts, "rma", counts, timeout=120)


# ChainerMN's waits spin, so that more ranks than cores take minutes.
@pytest.mark.parametrize("turns", [pytest.param(1, marks=pytest.mark.matrix), 3])
def test_schedules_over_chainermn(turns):
    """All of them, or each third one."""
    arguments = "chainermn", [3], turns
    assert_on_ranks(2, schedules_and_counts, *arguments, timeout=120)


def narrow_wire(comm):
    cuts = Plan.uniform(8, comm.size).cuts
    check_equal(
        comm,
        deep_mlp,
        cuts,
        make_batches([8, 8, 5]),
        rtol=1e-3,
        atol=1e-3,
        n_microbatches=3,
        message_dtype="fp16",
    )


def test_float16_on_the_wire():
    assert_on_ranks(2, narrow_wire)


def random_model(widths, activations):
    layers = []
    for a, b, activation in zip(widths, widths[1:], activations):
        layers += [L.Linear(a, b), getattr(F, activation)]
    return Divisible(*layers, L.Linear(widths[-1], 3))


@st.composite
def cases(draw):
    depth = draw(st.integers(2, 5))
    widths = draw(st.lists(st.integers(1, 6), min_size=depth, max_size=depth))
    activations = draw(
        st.lists(
            st.sampled_from(["relu", "tanh", "sigmoid"]), min_size=depth, max_size=depth
        )
    )
    n_layers = 2 * depth - 1
    schedule = draw(st.sampled_from(sorted(STAGES_PER_RANK)))
    # On two ranks; models too small for two stages each get the others' one.
    if n_layers < 4:
        schedule = draw(st.sampled_from(sorted({*ONE_PER_RANK} & {*STAGES_PER_RANK})))
    n_cuts = 2 * STAGES_PER_RANK[schedule] - 1
    cuts = draw(
        st.lists(
            st.integers(1, n_layers - 1), min_size=n_cuts, max_size=n_cuts, unique=True
        )
    )
    return {
        "widths": widths,
        "activations": activations,
        "cuts": [0, *sorted(cuts), n_layers],
        "batch_sizes": draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)),
        "n_microbatches": draw(st.integers(1, 6)),
        "schedule": schedule,
    }


def random_models(comm, drawn):
    for case in drawn:
        check_equal(
            comm,
            lambda case=case: random_model(case["widths"], case["activations"]),
            case["cuts"],
            make_batches(case["batch_sizes"], case["widths"][0], 3),
            n_microbatches=case["n_microbatches"],
            schedule=case["schedule"],
        )


@examples(8, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(cases(), min_size=10, max_size=10))
def test_random_models(drawn):
    assert_on_ranks(2, random_models, drawn)


def ignored_labels(comm):
    (x, t), *_ = batches = make_batches([8, 8, 5])
    t[:5] = -1
    cuts = Plan.uniform(len(mlp()), comm.size).cuts
    check_equal(comm, mlp, cuts, batches, n_microbatches=3)


def test_ignored_labels():
    assert_on_ranks(2, ignored_labels)


def tuples(comm):
    batches = make_batches([8, 8, 5, 2, 8])
    for cuts in ([0, 1, 2, 4], [0, 1, 3, 4], [0, 2, 3, 4]):
        check_equal(comm, tuple_model, cuts, batches, n_microbatches=3)


def test_several_tensors_between_stages():
    assert_on_ranks(3, tuples)


def plain_arrays(comm):
    """A first stage that returns an array has nothing to send a gradient to."""
    batches = make_batches([8, 5])
    for cut in (1, 2):
        check_equal(
            comm,
            lambda: Divisible(lambda x: x * 2, L.Linear(6, 5), L.Linear(5, 4)),
            [0, cut, 3],
            batches,
            n_microbatches=3,
        )


def test_plain_arrays_between_stages():
    assert_on_ranks(2, plain_arrays)


def evaluation(comm):
    np.random.seed(3)
    model = Divisible(L.Linear(6, 8), F.dropout, L.Linear(8, 5), L.Linear(5, 4))
    stage = model.divide(*Plan.uniform(4, comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=3, timeout=20)
    for x, t in make_batches([8, 8, 5, 2]):
        with chainer.using_config("train", False):
            y = model(x)
        result = pipe.evaluate(
            x if pipe.is_first else None, t if pipe.is_last else None
        )
        expected = {
            "loss": float(F.softmax_cross_entropy(y, t).array),
            "accuracy": float(F.accuracy(y, t).array),
        }
        assert result.keys() == expected.keys()
        for name in expected:
            assert_close(result[name], expected[name], rtol=1e-5)
        prediction = pipe.predict(x if pipe.is_first else None)
        assert_close(prediction, y.array, rtol=1e-5)
        # Training goes on between evaluations.
        pipe.step(x, t)


@pytest.mark.parametrize("n_ranks", [1, 4])
def test_evaluate_and_predict(n_ranks):
    assert_on_ranks(n_ranks, evaluation)


def other_losses(comm):
    """A regression with a tuple of targets, without accuracy, on a flat output."""
    np.random.seed(3)
    model = Divisible(L.Linear(6, 5), F.tanh, L.Linear(5, 2))

    def weighted_error(y, t, weight):
        return F.mean(F.sum((y - t) ** 2, axis=1) * weight)

    rng = np.random.RandomState(0)
    x, t, weight = (
        rng.rand(*shape).astype(np.float32) for shape in ((7, 6), (7, 2), (7,))
    )
    stage = model.divide(*Plan.uniform(3, comm.size).range(comm.rank))
    pipe = Pipeline(
        stage, comm, n_microbatches=2, lossfun=weighted_error, accfun=None, timeout=20
    )
    result = pipe.step(x, (t, weight))
    gradients = {path: param.grad.copy() for path, param in stage.namedparams()}
    loss = weighted_error(model(x), t, weight)
    model.cleargrads()
    loss.backward()
    assert result.keys() == {"loss"}
    assert_close(result["loss"], float(loss.array), rtol=1e-5)
    for path, param in model.namedparams():
        if path in gradients:
            assert_close(gradients[path], param.grad, rtol=1e-4)


def test_other_losses():
    assert_on_ranks(2, other_losses)
