"""Replicas train as one: as a serial script on all their samples."""

import os
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.optimizer_hooks import GradientClipping, WeightDecay
from chainer.training import Trainer, extensions
from chainer.training.updaters import StandardUpdater
from mpi4py import MPI

from data_parallel import create_multi_node_optimizer
from divisible.communication.errors import DisagreementError
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    CODED,
    N_STEPS,
    TIMEOUT,
    assert_alike,
    assert_close,
    make_batches,
    make_model,
    parts_of,
    read,
    replicate,
    values_of,
    written,
)


def as_serial(comm):
    for inner in (optimizers.MomentumSGD, optimizers.Adam):
        for sizes in ([4] * comm.size, [5, 2, 0, 7][: comm.size]):
            batches = make_batches(N_STEPS, sum(sizes))
            hooks = [WeightDecay(1e-3), GradientClipping(0.3)]
            expected, model = make_model(), make_model()
            serial = inner().setup(expected)
            optimizer = replicate(comm, model, inner(), hooks)
            for hook in hooks:
                serial.add_hook(hook)
            own = parts_of(sizes, comm.rank)
            for x, t in batches:
                serial.update(expected, x, t)
                optimizer.n_samples = None if sizes[0] == 4 else sizes[comm.rank]
                if sizes[comm.rank]:
                    optimizer.update(model, x[own], t[own])
                else:
                    model.cleargrads()
                    optimizer.update()
                assert optimizer.n_samples is None
            assert optimizer.t == N_STEPS
            assert_close(model, expected)
            assert_alike(comm, model)
            optimizer.close()


@pytest.mark.parametrize("n_ranks", [4, *matrix(2)])
def test_replicas_equal_a_serial_run(n_ranks):
    assert_on_ranks(n_ranks, as_serial)


def forgets_samples(comm, overlap):
    """The number of samples holds for one update, and who forgets it is warned."""
    sizes = [5, 3]
    own = parts_of(sizes, comm.rank)
    model = make_model()
    optimizer = replicate(comm, model, overlap=overlap)
    said = []
    for n_samples in ("set", "forgotten", "forgotten", "set", None, "forgotten"):
        (x, t), *_ = make_batches(1, sum(sizes))
        if n_samples != "forgotten":
            optimizer.n_samples = n_samples and sizes[comm.rank]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.update(model, x[own], t[own])
        said.append([each.filename for each in caught])
        assert all("n_samples was set" in str(each.message) for each in caught)
    warned = [__file__] if comm.rank == 0 else []
    assert said == [[], warned, [], [], [], []]
    optimizer.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_number_of_samples_that_is_forgotten_is_warned_of(overlap):
    assert_on_ranks(2, forgets_samples, overlap)


def averages_ahead(comm):
    """Means count for one update, and not if those of a loss replace them."""
    model = make_model()
    optimizer = replicate(comm, model)
    own = parts_of([4] * comm.size, comm.rank)
    batches = [(x[own], t[own]) for x, t in make_batches(2, 4 * comm.size)]
    for arguments in ((), (model, *batches[1]), None):
        model.cleargrads()
        model(*batches[0]).backward()
        if arguments is not None:
            optimizer.average_gradients()
        optimizer.update(*(arguments or ()))
        assert_alike(comm, model)
    optimizer.close()


def test_gradients_are_averaged_once_for_each_update():
    assert_on_ranks(2, averages_ahead)


def in_few_bits(comm):
    for strategy, exchange_dtype in (("two_roundings", "int8"), ("oyama2017", "fp8")):
        model = make_model()
        options = {**CODED, "exchange_dtype": exchange_dtype, "strategy": strategy}
        optimizer = replicate(comm, model, **options)
        losses = []
        x, t = make_batches(1, 4 * comm.size)[0]
        own = parts_of([4] * comm.size, comm.rank)
        for _ in range(40):
            optimizer.update(model, x[own], t[own])
            losses.append(comm.allreduce(float(model.loss.array)))
        assert losses[-1] < 0.2 * losses[0]
        assert_alike(comm, model)
        optimizer.close()


def test_training_in_few_bits_learns_and_keeps_replicas_alike():
    assert_on_ranks(2, in_few_bits)


def trained_by_trainer(comm, model, make_optimizer, batches, sizes):
    """Trains by Chainer's trainer, with an extension that changes the rate."""
    own = parts_of(sizes, comm.rank)
    samples = [pair for x, t in batches for pair in zip(x[own], t[own])]
    iterator = chainer.iterators.SerialIterator(
        samples, sizes[comm.rank], shuffle=False
    )
    optimizer = make_optimizer(model)
    updater = StandardUpdater(iterator, optimizer)
    trainer = Trainer(updater, (N_STEPS, "iteration"), out=os.devnull)
    shift = extensions.ExponentialShift("lr", 0.5, optimizer=optimizer)
    trainer.extend(shift, trigger=(3, "iteration"))
    trainer.run()
    return optimizer


def with_trainer(comm):
    batches = make_batches(N_STEPS, 4 * comm.size)
    expected, model = make_model(), make_model()
    serial = trained_by_trainer(
        MPI.COMM_SELF,
        expected,
        lambda m: optimizers.MomentumSGD(0.1).setup(m),
        batches,
        [4 * comm.size],
    )
    optimizer = trained_by_trainer(
        comm, model, lambda m: replicate(comm, m), batches, [4] * comm.size
    )
    assert optimizer.lr == serial.lr < 0.1
    assert optimizer.epoch == serial.epoch
    assert_close(model, expected)
    optimizer.close()


def test_trainer_and_extensions_know_no_difference():
    assert_on_ranks(2, with_trainer)


def trained_with_scale(model, optimizer, batches, own, loss_scale):
    """Trains by Chainer's updater; returns the scale after each update."""
    samples = [pair for x, t in batches for pair in zip(x[own], t[own])]
    size = own.stop - own.start
    iterator = chainer.iterators.SerialIterator(samples, size, shuffle=False)
    updater = StandardUpdater(iterator, optimizer, loss_scale=loss_scale)
    if loss_scale is None:
        optimizer.loss_scaling()
    scales = []
    for _ in batches:
        updater.update()
        scales.append(optimizer._loss_scale)
    return scales


def loss_scales(comm):
    """Of Chainer's own, set on the outer optimizer: as in a serial script."""
    batches = make_batches(N_STEPS, 4 * comm.size)
    # One of rank 1 overflows. A serial script skips the same step.
    batches[5][0][-1] = np.inf
    own = parts_of([4] * comm.size, comm.rank)
    for loss_scale in (128.0, None):
        for overlap in (False, True):
            expected, model = make_model(), make_model()
            serial = optimizers.MomentumSGD(0.1).setup(expected)
            optimizer = replicate(comm, model, overlap=overlap)
            used = batches if loss_scale is None else batches[:5]
            whole = slice(0, 4 * comm.size)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Non finite number")
                warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
                scales = trained_with_scale(expected, serial, used, whole, loss_scale)
                found = trained_with_scale(model, optimizer, used, own, loss_scale)
            assert found == scales
            assert optimizer.actual_optimizer._loss_scale == serial._loss_scale
            assert loss_scale or min(scales[4:]) < max(scales[:5])
            assert np.isfinite(model.predictor[0].W.array).all()
            assert_close(model, expected)
            assert_alike(comm, model)
            optimizer.close()


def test_loss_scales_of_chainer_are_those_of_a_serial_script():
    assert_on_ranks(2, loss_scales)


def scale_of_what_is_within(comm):
    """Set on the outer optimizer, a loss scale is that of mixed precision."""
    inner = MixedPrecision(
        optimizers.MomentumSGD(0.1), loss_scale=2.0**4, comm=comm, timeout=TIMEOUT
    )
    model = mixed_model()
    optimizer = replicate(comm, model, inner)
    optimizer.set_loss_scale(2.0**9)
    assert float(inner.loss_scale) == optimizer._loss_scale == 2.0**9
    (x, t), *_ = make_batches(1, 4)

    def loss():
        return F.softmax_cross_entropy(F.cast(model(x.astype(np.float16)), "f"), t)

    for _ in range(2):
        optimizer.update(loss)
    # Mixed precision refuses gradients that are scaled otherwise.
    assert optimizer.t == 2
    optimizer.loss_scaling(interval=1)
    before = float(inner.loss_scale)
    optimizer.update(loss)
    assert float(inner.loss_scale) == 2 * before
    optimizer.close()
    inner.close()


def test_a_loss_scale_reaches_mixed_precision_within():
    assert_on_ranks(2, scale_of_what_is_within)


def mixed_model():
    np.random.seed(2)
    layers = L.Linear(10, 20), F.relu, L.Linear(20, 5)
    return to_float16(chainer.Sequential(*layers))


# An update before which the loss scale has not just changed.
BAD = 10


def mixed(comm):
    for options in ({}, {**CODED, "error_feedback": True}, {"double_buffering": True}):
        inner = optimizers.MomentumSGD(0.1)
        scale = DynamicLossScale(2.0**8, growth_interval=3)
        model = mixed_model()
        optimizer = MixedPrecision(inner, loss_scale=scale, comm=comm, timeout=TIMEOUT)
        optimizer = replicate(comm, model, optimizer, **options)
        losses, skipped = [], []
        x, t = make_batches(1, 4 * comm.size)[0]
        own = parts_of([4] * comm.size, comm.rank)
        for i in range(20):
            y = model(x[own].astype(np.float16))
            loss = F.softmax_cross_entropy(F.cast(y, "f"), t[own])
            losses.append(comm.allreduce(float(loss.array)))
            model.cleargrads()
            loss.backward(loss_scale=float(scale))
            if i == BAD and comm.rank == 1:
                model[0].W.grad[0, 0] = np.inf
            residuals = kept_residuals(optimizer)
            optimizer.update()
            if i == BAD:
                assert kept_residuals(optimizer) == residuals
            skipped.append(optimizer.n_skipped)
        late = "double_buffering" in options
        n_good = BAD + late
        assert skipped == [0] * n_good + [1] * (20 - n_good)
        assert float(scale) > 2.0**8
        assert losses[-1] < 0.5 * losses[0]
        assert_alike(comm, model)
        optimizer.close()
        optimizer.actual_optimizer.close()


def kept_residuals(optimizer):
    writer = chainer.serializers.DictionarySerializer()
    optimizer.serialize(writer)
    return {k: v.tobytes() for k, v in writer.target.items() if "residuals/of" in k}


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    assert_on_ranks(2, mixed)


OPTIONS = {**CODED, "error_feedback": True, "double_buffering": True}


def train_on(comm, model, optimizer, steps):
    for x, t in make_batches(N_STEPS, 12)[steps]:
        own = slice(12 * comm.rank // comm.size, 12 * (comm.rank + 1) // comm.size)
        optimizer.n_samples = own.stop - own.start
        optimizer.update(model, x[own], t[own])


def resumed(comm):
    two = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED)
    snapshots = None
    if two != MPI.COMM_NULL:
        model = make_model()
        optimizer = replicate(two, model, **OPTIONS)
        train_on(two, model, optimizer, slice(0, 4))
        snapshots = written(model), written(optimizer)
        train_on(two, model, optimizer, slice(4, None))
        expected = values_of(model)
        optimizer.close()

        model = make_model(seed=9)
        optimizer = replicate(two, model, **OPTIONS)
        read(model, snapshots[0])
        read(optimizer, snapshots[1])
        train_on(two, model, optimizer, slice(4, None))
        assert values_of(model) == expected
        optimizer.close()
    all_snapshots = comm.allgather(snapshots)
    reached = comm.bcast(model if comm.rank == 0 else None)
    for n_ranks in (1, 3, 4):
        some = comm.Split(0 if comm.rank < n_ranks else MPI.UNDEFINED)
        if some != MPI.COMM_NULL:
            model = make_model(seed=9)
            optimizer = replicate(some, model, **OPTIONS)
            mine = all_snapshots[min(some.rank, 1)]
            read(model, mine[0])
            with warnings.catch_warnings():
                # On one rank half of what was kept is not loaded.
                warnings.simplefilter("error" if n_ranks > 1 else "ignore")
                read(optimizer, mine[1])
                train_on(some, model, optimizer, slice(4, None))
            assert optimizer.t == N_STEPS - 1
            assert_alike(some, model)
            for a, b in zip(model.params(), reached.params()):
                assert abs(a.array - b.array).max() < 0.02
            optimizer.close()


def test_training_resumes_bit_for_bit_and_on_other_numbers_of_ranks():
    assert_on_ranks(4, resumed)


def from_serial(comm):
    """Goes on from a snapshot that knows nothing of an exchange."""
    batches = make_batches(N_STEPS, 4 * comm.size)
    expected, model = make_model(), make_model(seed=8)
    serial = optimizers.MomentumSGD(0.1).setup(expected)
    for x, t in batches[:4]:
        serial.update(expected, x, t)
    optimizer = replicate(comm, model)
    read(model, written(expected))
    read(optimizer, written(serial))
    own = parts_of([4] * comm.size, comm.rank)
    for x, t in batches[4:]:
        serial.update(expected, x, t)
        optimizer.update(model, x[own], t[own])
    assert optimizer.t == serial.t == N_STEPS
    assert_close(model, expected)
    optimizer.close()


def test_a_snapshot_of_a_serial_script_is_read():
    assert_on_ranks(2, from_serial)


def wrong_arguments(comm):
    sgd = optimizers.SGD(0.1)
    wrong = comm.rank == 1
    with pytest.raises(ValueError, match="exempt must be '1d'"):
        create_multi_node_optimizer(sgd, comm, exempt="2d")
    with pytest.raises(ValueError, match="check_every must be"):
        create_multi_node_optimizer(sgd, comm, check_every=0)
    with pytest.raises(TypeError, match="optimizer must be a Chainer optimizer"):
        create_multi_node_optimizer("sgd", comm)
    with pytest.raises(
        DisagreementError, match="exchange_dtype='fp32', but rank 1 has"
    ):
        create_multi_node_optimizer(
            sgd, comm, exchange_dtype="int8" if wrong else "fp32", minimum=0
        )
    with pytest.raises(ValueError, match="exchange_dtype must be"):
        create_multi_node_optimizer(sgd, comm, exchange_dtype="int3")


def test_wrong_arguments_are_refused():
    assert_on_ranks(2, wrong_arguments)
