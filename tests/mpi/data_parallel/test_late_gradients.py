"""Double buffering: what is applied is one update late."""

from chainer import optimizers

from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    N_STEPS,
    assert_close,
    make_batches,
    make_model,
    parts_of,
    replicate,
)


def one_update_late(comm):
    """Compares with a serial run that applies the last gradients."""
    batches = make_batches(N_STEPS, 4 * comm.size)
    expected, model = make_model(), make_model()
    serial = optimizers.MomentumSGD(0.1).setup(expected)
    last = None
    for x, t in batches:
        expected.cleargrads()
        expected(x, t).backward()
        now = [p.grad for p in expected.params()]
        if last is not None:
            for param, gradient in zip(expected.params(), last):
                param.grad = gradient
            serial.update()
        last = now
    optimizer = replicate(comm, model, double_buffering=True)
    own = parts_of([4] * comm.size, comm.rank)
    for x, t in batches:
        optimizer.update(model, x[own], t[own])
    assert optimizer.t == N_STEPS - 1
    assert_close(model, expected)
    optimizer.close()


def test_double_buffering_is_one_update_late():
    assert_on_ranks(2, one_update_late)
