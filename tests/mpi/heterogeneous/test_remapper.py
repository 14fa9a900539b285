"""Training that moves its parts is training."""

from types import SimpleNamespace

import chainer
import numpy as np
import pytest

from heterogeneous import (
    RectangularMLP,
    Remapper,
    StepSeconds,
    rectangular_partition,
)
from tests.mpi.heterogeneous.test_mlp import (
    OUT,
    TIMEOUT,
    M,
    N,
    S,
    assert_copies_are_equal,
    data,
)
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

EVERY = 3


def made(comm, **options):
    partition = rectangular_partition([1] * comm.size, N, M, OUT, S)
    mlp = RectangularMLP(N, M, OUT, comm, partition, timeout=TIMEOUT)
    optimizer = chainer.optimizers.Adam().setup(mlp)
    remapper = Remapper(mlp, optimizer, every=EVERY, timeout=TIMEOUT, **options)
    return mlp, optimizer, remapper


def pretend(mlp, abilities):
    """Lets times be those of such abilities."""
    step = mlp.step

    def timed(x, t):
        result = step(x, t)
        r = mlp.partition.rectangles[mlp.comm.rank]
        half = r.work / abilities[mlp.comm.rank] / 2
        mlp.seconds = StepSeconds(half, 0.0, half, 0.0)
        return result

    object.__setattr__(mlp, "step", timed)


def losses_of(comm, true, **options):
    mlp, _, remapper = made(comm, **options)
    pretend(mlp, true)
    x, t = data()
    losses = [remapper.step(x, t)["loss"] for _ in range(5 * EVERY)]
    assert_copies_are_equal(comm, mlp)
    weights = mlp.gather()
    mlp.close()
    return losses, weights, remapper


def training(comm):
    """Remaps everything, then lines, and the losses are those of no remapping."""
    still, weights, _ = losses_of(comm, [1] * comm.size, whole=0, line=0)
    abilities = [1.0, 2.0, 4.0, 3.0][: comm.size]
    for given in (None, [2.0, 2.0, 4.0, 3.0][: comm.size]):
        moving, found, remapper = losses_of(comm, abilities, abilities=given)
        np.testing.assert_allclose(moving, still, rtol=1e-4)
        for name, values in weights.items():
            np.testing.assert_allclose(found[name], values, atol=1e-3)
        checks = remapper.history
        assert [check.iteration for check in checks] == [3, 6, 9, 12, 15]
        assert checks[0].action == ("whole" if given is None else "line")
        assert all(check.action is None for check in checks[2:])
        assert checks[-1].ratio > 0.8
        assert all(check.seconds > 0 for check in checks)
        assert comm.allgather(checks) == [checks] * comm.size
        shares = np.array(abilities) / sum(abilities)
        np.testing.assert_allclose(checks[-1].abilities, shares, rtol=1e-6)
        assert sum(checks[-1].per_column) == comm.size
        # The one that has more than it can do.
        assert checks[0].slowest == 0


@pytest.mark.parametrize("n_ranks", [4, *matrix(2)])
def test_losses_do_not_change_when_units_move(n_ranks):
    assert_on_ranks(n_ranks, training)


def printed(comm):
    """Checks of the printed method against NumPy: rank 1 has one long iteration."""
    every, seconds = 6, [[2.0] * 6, [2.0, 2.0, 20.0, 2.0, 2.0, 2.0]]
    late = [1.0, 0.0]
    found = {}
    for name, options in {
        "printed": {"filter": False, "waits": True},
        "waits": {"waits": True},
        "ours": {},
    }.items():
        partition = rectangular_partition([1, 1], N, M, OUT, S)
        mlp = RectangularMLP(N, M, OUT, comm, partition, timeout=TIMEOUT)
        optimizer = chainer.optimizers.SGD(0.1).setup(mlp)
        options |= {"abilities": [1, 1], "whole": 0, "line": 0, "timeout": TIMEOUT}
        remapper = Remapper(mlp, optimizer, every=every, **options)
        times = iter(seconds[comm.rank])
        step = mlp.step

        def timed(x, t, mlp=mlp, step=step, times=times):
            result, half = step(x, t), next(times) / 2
            mlp.seconds = StepSeconds(half, 0.0, half, 0.0, late[comm.rank])
            return result

        object.__setattr__(mlp, "step", timed)
        for _ in range(every):
            remapper.step(*data())
        (found[name],) = remapper.history
        mlp.close()
    work = [r.work for r in partition.rectangles]

    def shares(t):
        slopes = [
            np.linalg.lstsq(np.array(t[i])[:, None], np.full(len(t[i]), work[i]))[0][0]
            for i in range(2)
        ]
        return np.array(slopes) / sum(slopes)

    with_waits = [[t + late[i] for t in seconds[i]] for i in range(2)]
    np.testing.assert_allclose(found["printed"].abilities, shares(with_waits))
    assert found["printed"].ratio == pytest.approx(3 / 5)
    usual = [3.0] * 6, [2.0] * 5
    np.testing.assert_allclose(found["waits"].abilities, shares(usual))
    assert found["waits"].ratio == pytest.approx(2 / 3)
    np.testing.assert_allclose(found["ours"].abilities, shares([[2.0], [2.0]]))


def test_the_method_as_printed():
    assert_on_ranks(2, printed)


def given_abilities(comm):
    mlp, _, _ = made(comm, abilities=[1.0, 3.0])
    expected = rectangular_partition([1.0, 3.0], N, M, OUT, S)
    assert mlp.partition.rectangles == expected.rectangles
    mlp.close()


def test_given_abilities_map_the_network_at_once():
    assert_on_ranks(2, given_abilities)


def late_rank(comm):
    """Ranks of one column: what one waits for the other is none of its time."""
    partition = rectangular_partition([1, 1], N, M, 1, 2)
    assert partition.n_columns == 1
    mlp = RectangularMLP(N, M, 1, comm, partition, timeout=TIMEOUT)
    x, t = np.ones((2, N), "f"), np.ones((2, 1), "f")
    partial = mlp._partial

    # Seconds by the clock of this rank: a part takes 1 on rank 0 and 4 on rank 1, for
    # which rank 0 waits 3.
    now, n_waits = [0.0], [0]
    wait = mlp._messages.wait

    def slow(x):
        n_waits[0] = 0
        now[0] += [1.0, 4.0][comm.rank]
        return partial(x)

    def wait_on_the_clock(pending):
        wait(pending)
        now[0] += [3.0, 0.0][comm.rank] if not n_waits[0] else 0.0
        n_waits[0] += 1

    object.__setattr__(mlp, "_partial", slow)
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(perf_counter=lambda: now[0])
        patch.setattr("heterogeneous.mlp.time", clock)
        patch.setattr("heterogeneous.sums.time", clock)
        patch.setattr(mlp._messages, "wait", wait_on_the_clock)
        for _ in range(2):
            mlp.step(x, t)
            assert comm.allgather(mlp.seconds.t1()) == [1.0, 4.0]
            assert comm.allgather(mlp.seconds.late) == [3.0, 0.0]
    mlp.close()


def test_waits_for_late_ranks_do_not_count():
    assert_on_ranks(2, late_rank)
