"""A stashed tensor with several users, on several stages: as in the undivided model."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan, pop, stash
from pipeline import Pipeline
from tests.support.equivalence import check_equal, make_batches, stages_of_rank
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks
from tests.support.sent_messages import sent_in_a_step

N_USERS = 5


def dense():
    """Each layer also gets the outputs of all layers before, as in DenseNet."""
    layers = []
    for i in range(N_USERS):
        layers += [L.Linear(6, 6), F.tanh, stash(f"h{i}")]
        layers += [pop(f"h{j}", F.add) for j in range(i)]
    layers += [pop(f"h{N_USERS - 1}", F.add), L.Linear(6, 4)]
    return Divisible(*layers)


def attentive():
    """Each block reads the residual of the beginning, as attention residuals do."""
    layers = [L.Linear(6, 6), stash("first")]
    for _ in range(N_USERS):
        layers += [L.Linear(6, 6), pop("first", F.add), F.tanh]
    return Divisible(*layers, L.Linear(6, 4))


MODELS = {"dense": dense, "attentive": attentive}


ALL = ("never", "always", [(0, 3), (4, 9)])
#: Of each schedule one, in turn.
RECOMPUTATIONS = dict(zip(("1f1b", "zb_v", "interleaved"), ([each] for each in ALL)))


def several_schedules(comm, name, recomputations):
    model = MODELS[name]
    for schedule, per_rank in (("1f1b", 1), ("zb_v", 2), ("interleaved", 2)):
        cuts = Plan.uniform(len(model()), per_rank * comm.size).cuts
        for recompute in recomputations or RECOMPUTATIONS[schedule]:
            check_equal(
                comm,
                model,
                cuts,
                make_batches([8, 5]),
                n_microbatches=3,
                schedule=schedule,
                recompute=recompute,
            )


@pytest.mark.parametrize(
    "name, n_ranks, recomputations",
    [
        ("dense", 4, None),
        ("attentive", 2, None),
        *matrix(*((name, n, ALL) for name in MODELS for n in (2, 4))),
    ],
)
def test_trains_as_the_undivided_model(name, n_ranks, recomputations):
    assert_on_ranks(n_ranks, several_schedules, name, recomputations)


def halved(x):
    x *= 0.5
    return x


def arrays_that_users_change(comm):
    def model():
        layers = [lambda x: x * 2, stash("x"), L.Linear(6, 6)]
        for _ in range(2):
            # The first output is a variable, the second one an array of its own.
            layers += [pop("x"), lambda h, x: h + halved(x), L.Linear(6, 6)]
        return Divisible(*layers, L.Linear(6, 4))

    for cuts in ([0, 2, 10], [0, 4, 10], [0, 6, 10]):
        batches = make_batches([8])
        check_equal(comm, model, cuts, batches, n_microbatches=2)


def test_a_user_may_change_an_array_in_place():
    assert_on_ranks(2, arrays_that_users_change)


def sent_over_skips(comm, schedule, n_stages, n_microbatches):
    """The messages over skip connections that this rank has sent in a step."""
    model = attentive()
    plan = Plan.uniform(len(model), n_stages)
    stages = [
        model.divide(*plan.range(i)) for i in stages_of_rank(comm, n_stages, schedule)
    ]
    (x, t) = make_batches([8])[0]
    with Pipeline(
        stages, comm, n_microbatches=n_microbatches, schedule=schedule, timeout=30
    ) as pipe:
        texts = sent_in_a_step(pipe, x, t)
    return sum(".first" in text for text in texts)


def counts_messages(comm):
    for schedule, n_stages in (("1f1b", 4), ("interleaved", 8), ("zb_v", 8)):
        counts = comm.allgather(sent_over_skips(comm, schedule, n_stages, 2))
        # Once to each other rank, and its gradient once back, in each microbatch.
        assert sum(counts) == 2 * 2 * (comm.size - 1), (schedule, counts)


def test_each_rank_gets_a_tensor_once():
    assert_on_ranks(4, counts_messages)


def gradients_keep_their_order(comm):
    """The same bits in each run."""
    found = []
    for _ in range(2):
        np.random.seed(1)
        model = dense()
        stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
        (x, t) = make_batches([8])[0]
        with Pipeline(stage, comm, n_microbatches=3, timeout=30) as pipe:
            pipe.step(x, t)
        found.append(b"".join(p.grad.tobytes() for _, p in sorted(stage.namedparams())))
    assert found[0] == found[1]


def test_gradients_are_added_in_a_fixed_order():
    assert_on_ranks(4, gradients_keep_their_order)
