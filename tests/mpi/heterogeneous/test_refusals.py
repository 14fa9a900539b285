"""What is wrong on one rank is refused on all, before any message."""

import chainer
import numpy as np
import pytest

from divisible.communication.errors import DisagreementError
from heterogeneous import RectangularMLP, Remapper, rectangular_partition
from tests.mpi.heterogeneous.test_mlp import (
    OUT,
    TIMEOUT,
    M,
    N,
    S,
    data,
    partition_of,
)
from tests.support.mpiexec import assert_on_ranks


def make(comm, **changed):
    given = {
        "n_in": N,
        "n_hidden": M,
        "n_out": OUT,
        "partition": partition_of(comm.size, 0),
        "timeout": TIMEOUT,
        **changed,
    }
    return RectangularMLP(comm=comm, **given)


def refused(comm, call, error, words):
    """Rank 1 alone has something wrong; all others say what and where."""
    expected = error if comm.rank == 1 else DisagreementError
    with pytest.raises(expected, match=words) as caught:
        call()
    assert str(caught.value).startswith("rank 1: ") == (comm.rank != 1)


WRONG = [
    (lambda n: {"partition": None}, TypeError, "must be a RectangularPartition, not N"),
    (lambda n: {"partition": partition_of(n + 1, 0)}, ValueError, "3 processors, but"),
    (lambda n: {"n_hidden": 80}, ValueError, r"of \(7, 23, 4\) inputs, hidden units a"),
    (lambda n: {"seed": -1}, ValueError, "seed must be 0 or more"),
    (lambda n: {"dtype": "f2"}, ValueError, "float32 or float64, not float16"),
    (lambda n: {"timeout": 0}, ValueError, "timeout must be positive, not 0"),
]
DIFFERENT = [
    ({"seed": 1}, "rank 0 has seed=0, but rank 1 has 1"),
    ({"nobias": False}, "rank 0 has nobias=True, but rank 1 has False"),
    ({"dtype": "d"}, "rank 0 has dtype='float32', but rank 1 has 'float64'"),
    ({"activation": chainer.functions.tanh}, "activation='sigmoid', but rank 1 has 't"),
]


def constructions(comm):
    for change, error, words in WRONG:
        changed = change(comm.size) if comm.rank == 1 else {}
        refused(comm, lambda c=changed: make(comm, **c), error, words)
    for changed, words in DIFFERENT:
        with pytest.raises(DisagreementError, match=words):
            make(comm, **(changed if comm.rank == 1 else {}))
    other = partition_of(comm.size, 1)
    with pytest.raises(DisagreementError, match="rank 0 has (samples|units|columns)="):
        make(comm, **({"partition": other} if comm.rank == 1 else {}))


def test_networks_that_are_refused():
    assert_on_ranks(2, constructions)


def abilities(comm):
    """The shares themselves, as everywhere: each rank refuses them alone."""
    for wrong in ([0.0, 1.0], [1.0, -1.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match=r"ability \d is"):
            rectangular_partition(wrong, N, M, OUT, S)
    mlp = make(comm)
    optimizer = chainer.optimizers.SGD().setup(mlp)
    for wrong, words in [
        ([0.0, 1.0], "ability 0 is 0.0: it must be positive"),
        ([1.0, -1.0], "ability 1 is -1.0: it must be finite, not negative"),
        ([1.0, float("nan")], "ability 1 is nan"),
        ([1.0, 1.0, 1.0], "3 abilities for 2 ranks"),
    ]:
        own = wrong if comm.rank == 1 else [1.0, 1.0]
        refused(
            comm,
            lambda own=own: Remapper(mlp, optimizer, abilities=own, timeout=TIMEOUT),
            ValueError,
            words,
        )
    for changed, words in [
        ({"every": 0}, "every must be 1 or more, not 0"),
        ({"last": 0}, "last must be 1 or more, not 0"),
        ({"whole": 0.9}, "0 <= whole <= line <= 1"),
    ]:
        own = changed if comm.rank == 1 else {}
        refused(
            comm, lambda own=own: Remapper(mlp, optimizer, **own), ValueError, words
        )
    with pytest.raises(
        DisagreementError, match="rank 0 has every=20, but rank 1 has 7"
    ):
        Remapper(mlp, optimizer, every=7 if comm.rank == 1 else 20)
    for name in ("filter", "waits"):
        with pytest.raises(DisagreementError, match=f"rank 0 has {name}=False"):
            Remapper(mlp, optimizer, **{name: comm.rank == 1})
    mlp.close()


def test_abilities_that_are_refused():
    assert_on_ranks(2, abilities)


def optimizers(comm):
    mlp = make(comm)
    clipping = chainer.optimizers.SGD().setup(mlp)
    clipping.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
    noise = chainer.optimizers.SGD().setup(mlp)
    noise.add_hook(chainer.optimizer_hooks.GradientNoise(0.1))
    for optimizer, error, words in [
        (clipping, ValueError, "hook GradientClipping would change the copies"),
        (noise, ValueError, "hook GradientNoise would change the copies"),
        (chainer.optimizers.SGD(), ValueError, "is not set up with this network"),
        (None, TypeError, "must be one of Chainer's, such as SGD"),
    ]:
        fine = chainer.optimizers.SGD().setup(mlp)
        own = optimizer if comm.rank == 1 else fine
        refused(comm, lambda own=own: Remapper(mlp, own), error, words)
    mlp.close()


def test_optimizers_that_are_refused():
    assert_on_ranks(2, optimizers)


def calls(comm):
    mlp = make(comm)
    optimizer = chainer.optimizers.Adam().setup(mlp)
    x, t = data()
    wrong = [
        (
            (x[:, :3], t),
            ValueError,
            r"x has the shape \(50, 3\): it must be",
        ),
        ((x.astype("d"), t), TypeError, "x is float64 and the network float32"),
        ((x.tolist(), t), TypeError, "x must be an array, not list"),
        ((x, t[:9]), ValueError, "x has 50 samples, but t is of shape"),
        ((x, t[:, :2]), ValueError, r"floats of shape \(50, 4\)"),
        ((x, None), TypeError, "t must be an array, not NoneType"),
        ((x[:0], t[:0]), ValueError, "with one sample at least"),
    ]
    for given, error, words in wrong:
        own = given if comm.rank == 1 else (x, t)
        refused(comm, lambda own=own: mlp.step(*own), error, words)
        # And they go on.
        assert mlp.step(x, t)["loss"] > 0
    n_columns = mlp.partition.n_columns
    if n_columns > 1:
        few = (x[: n_columns - 1], t[: n_columns - 1])
        own = few if comm.rank == 1 else (x, t)
        words = f"1 samples for {n_columns} columns of ranks"
        refused(comm, lambda: mlp.step(*own), ValueError, words)
    fewer = x[: 50 - comm.rank], t[: 50 - comm.rank]
    words = "rank 0 has x of 50 samples, but rank 1 has x of 49 samples"
    with pytest.raises(DisagreementError, match=words):
        mlp.step(*fewer)
    with pytest.raises(DisagreementError, match=r"call \d+, (step|gather), but rank 1"):
        mlp.gather() if comm.rank == 0 else mlp.step(x, t)
    optimizer.update()
    other = partition_of(comm.size + 1, 3)
    own = other if comm.rank == 1 else partition_of(comm.size, 3)
    refused(
        comm,
        lambda: mlp.remap(own, optimizer=optimizer),
        ValueError,
        "processors, but ther",
    )
    other = partition_of(comm.size, 4) if comm.rank == 1 else mlp.partition
    with pytest.raises(DisagreementError, match="rank 0 has (columns|samples|units)="):
        mlp.remap(other, optimizer=optimizer)
    if comm.rank == 1:
        mlp.W.update_rule.state["odd"] = np.zeros(3, "f")
    refused(
        comm,
        lambda: mlp.remap(mlp.partition, optimizer=optimizer),
        ValueError,
        r"keeps 'odd' of W, float32 of shape \(3,\)",
    )
    assert mlp.step(x, t)["loss"] > 0
    mlp.close()


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_calls_that_are_refused(n_ranks):
    assert_on_ranks(n_ranks, calls)
