"""Replicas train as one: as a serial script on all their samples."""

import io
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
from tests.support.mpiexec import assert_on_ranks

N_STEPS = 8
TIMEOUT = 30
CODED = {"wire_dtype": "int8", "local_size": 1, "minimum": 0}


def make_model(seed=1):
    np.random.seed(seed)
    layers = L.Linear(10, 20), F.relu, L.Linear(20, 5)
    return L.Classifier(chainer.Sequential(*layers))


def make_batches(n_steps, n):
    random = np.random.RandomState(0)
    return [
        (random.randn(n, 10).astype("f"), random.randint(0, 5, n).astype("i"))
        for _ in range(n_steps)
    ]


def replicate(comm, model, inner=None, hooks=(), **options):
    inner = inner or optimizers.MomentumSGD(0.1)
    options.setdefault("timeout", TIMEOUT)
    optimizer = create_multi_node_optimizer(inner, comm, **options).setup(model)
    for hook in hooks:
        optimizer.add_hook(hook)
    return optimizer


def parts_of(sizes, rank):
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def assert_close(model, expected):
    for (name, a), (_, b) in zip(
        sorted(model.namedparams()), sorted(expected.namedparams())
    ):
        np.testing.assert_allclose(a.array, b.array, 1e-5, 1e-6, err_msg=name)


def values_of(model):
    return b"".join(p.array.tobytes() for _, p in sorted(model.namedparams()))


def assert_alike(comm, model):
    assert len(set(comm.allgather(values_of(model)))) == 1


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


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_replicas_equal_a_serial_run(n_ranks):
    assert_on_ranks(n_ranks, as_serial)


def in_few_bits(comm):
    for strategy, wire_dtype in (("two_roundings", "int8"), ("oyama2017", "fp8")):
        model = make_model()
        options = {**CODED, "wire_dtype": wire_dtype, "strategy": strategy}
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
    trainer = Trainer(StandardUpdater(iterator, optimizer), (N_STEPS, "iteration"))
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


def different_values(comm):
    model = make_model(seed=comm.rank)
    optimizer = replicate(comm, model)
    (x, t), *_ = make_batches(1, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.update(model, x, t)
    texts = [str(w.message) for w in caught if "differ between" in str(w.message)]
    assert len(texts) == (comm.rank == 0)
    assert all("/predictor/0/W on rank 1" in text for text in texts)
    # Their gradients were those of other weights.
    assert optimizer.t == 0
    assert values_of(model) == values_of(make_model(seed=0))
    optimizer.update(model, x, t)
    assert optimizer.t == 1
    optimizer.close()


def test_replicas_that_differ_get_the_values_of_rank_0():
    assert_on_ranks(2, different_values)


def unlike(comm, what):
    """Makes something differ on rank 1, and returns what the refusal must say."""
    model, inner, hooks = make_model(), optimizers.MomentumSGD(0.1), []
    differs = comm.rank == 1
    if what == "name" and differs:
        model.add_param("more", (2,), initializer=0)
    if what == "shape" and differs:
        model.predictor[2].b.array = np.zeros(6, "f")
    if what == "dtype" and differs:
        model.predictor[2].b.array = np.zeros(5, "d")
    if what == "hyperparameter" and differs:
        inner.lr = 0.2
    if what == "optimizer" and differs:
        inner = optimizers.SGD(0.1)
    if what == "hook":
        hooks = [WeightDecay(0.1 * (1 + differs))]
    if what == "rule" and differs:
        optimizer = replicate(comm, model, inner)
        model.predictor[2].b.update_rule.hyperparam.lr = 0.3
        return model, optimizer
    return model, replicate(comm, model, inner, hooks)


REFUSALS = {
    "name": "/more",
    "shape": r"/predictor/1/b of \(5,\)",
    "dtype": "/predictor/1/b of .* float32",
    "hyperparameter": "lr=0.1 of MomentumSGD, but rank 1 has lr=0.2",
    "optimizer": "MomentumSGD",
    "hook": "rate=0.1 of WeightDecay, but rank 1 has rate=0.2",
    "rule": "lr=0.3 of the update rule of /predictor/1/b",
}


def refused(comm):
    for what, text in REFUSALS.items():
        model, optimizer = unlike(comm, what)
        before = values_of(model)
        with pytest.raises(DisagreementError, match=text):
            optimizer.update()
        assert values_of(model) == before
        optimizer.close()


def test_replicas_of_unlike_models_are_refused_by_name():
    assert_on_ranks(2, refused)


def not_to_be_exchanged(comm):
    model = make_model()
    if comm.rank == 1:
        model.add_param("count", initializer=np.zeros(2, "i"))
    optimizer = replicate(comm, model)
    (x, t), *_ = make_batches(1, 4)
    error = TypeError if comm.rank == 1 else DisagreementError
    with pytest.raises(error, match="parameter /count is of dtype int32"):
        optimizer.update(model, x, t)
    optimizer.close()


def test_what_cannot_be_exchanged_is_refused_on_all_ranks():
    assert_on_ranks(2, not_to_be_exchanged)


def drifting(comm):
    model = make_model()
    optimizer = replicate(comm, model, check_every=3)
    for i, (x, t) in enumerate(make_batches(4, 4)):
        if i == 3:
            with pytest.raises(DisagreementError, match="number 4 1 of 4 .*/1/W: on r"):
                optimizer.update(model, x, t)
            break
        optimizer.update(model, x, t)
        if i == 1 and comm.rank == 1:
            model.predictor[2].W.array[0, 0] += 1e-3
    optimizer.close()


def test_replicas_that_drift_apart_are_noticed():
    assert_on_ranks(2, drifting)


class Branches(chainer.Chain):
    """Not all parameters have a gradient on all ranks."""

    def __init__(self):
        super().__init__(a=L.Linear(3, 2), b=L.Linear(3, 2), c=L.Linear(3, 2))


def missing_gradients(comm):
    x = np.ones((2, 3), "f")
    for double_buffering in (False, True):
        np.random.seed(0)
        model = Branches()
        optimizer = replicate(comm, model, double_buffering=double_buffering)
        before = model.b.W.array.copy()
        for _ in range(2):
            model.cleargrads()
            F.sum(model.a(x) + (0 if comm.rank else model.b(x))).backward()
            mine = None if comm.rank else model.b.W.grad.copy()
            optimizer.update()
        expected = before - np.float32(0.1) * (comm.bcast(mine) / comm.size)
        if not double_buffering:
            # Momentum 0.9, twice the same gradient.
            expected -= np.float32(0.19) * (comm.bcast(mine) / comm.size)
        np.testing.assert_allclose(model.b.W.array, expected, 1e-5)
        assert_alike(comm, model)
        optimizer.close()
    model = Branches()
    optimizer = replicate(comm, model, zero_fill=False)
    model.cleargrads()
    F.sum(model.a(x) + (0 if comm.rank else model.b(x))).backward()
    with pytest.raises(DisagreementError, match="/b/W is there on some"):
        # The first parameters are those of rank 0, without an update.
        optimizer.update()
        model.cleargrads()
        F.sum(model.a(x) + (0 if comm.rank else model.b(x))).backward()
        optimizer.update()
    optimizer.close()


def test_zeros_stand_for_a_missing_gradient():
    assert_on_ranks(2, missing_gradients)


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
        optimizer = MixedPrecision(inner, scale, comm, timeout=TIMEOUT)
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


def written(thing):
    file = io.BytesIO()
    chainer.serializers.save_npz(file, thing)
    return file.getvalue()


def read(thing, data):
    chainer.serializers.load_npz(io.BytesIO(data), thing)


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


def lazily_initialized(comm):
    """Compares replicas again when a parameter gets its shape."""
    np.random.seed(comm.rank)
    model = chainer.Sequential(L.Linear(None, 4), L.Linear(None, 3))
    optimizer = replicate(comm, model)
    x = np.ones((2, 5), "f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.update(lambda: F.sum(model(x)))
        assert optimizer.t == 0
    optimizer.update(lambda: F.sum(model(x)))
    assert optimizer.t == 1
    assert_alike(comm, model)
    optimizer.close()


def test_parameters_may_be_initialized_late():
    assert_on_ranks(2, lazily_initialized)


def wrong_arguments(comm):
    sgd = optimizers.SGD(0.1)
    wrong = comm.rank == 1
    with pytest.raises(ValueError, match="exempt must be '1d'"):
        create_multi_node_optimizer(sgd, comm, exempt="2d")
    with pytest.raises(ValueError, match="check_every must be"):
        create_multi_node_optimizer(sgd, comm, check_every=0)
    with pytest.raises(TypeError, match="optimizer must be a Chainer optimizer"):
        create_multi_node_optimizer("sgd", comm)
    with pytest.raises(DisagreementError, match="wire_dtype='fp32', but rank 1 has"):
        create_multi_node_optimizer(
            sgd, comm, wire_dtype="int8" if wrong else "fp32", minimum=0
        )
    with pytest.raises(ValueError, match="wire_dtype must be"):
        create_multi_node_optimizer(sgd, comm, wire_dtype="int4")


def test_wrong_arguments_are_refused():
    assert_on_ranks(2, wrong_arguments)


def during_backward(comm):
    """Exchanges in several buckets, and compares with exchanges after backward."""
    (x, t), *_ = make_batches(1, 4 * comm.size)
    own = parts_of([4] * comm.size, comm.rank)
    reached = []
    for overlap in (True, False):
        model = make_model()
        options = {**CODED, "bucket_bytes": 64, "overlap": overlap}
        optimizer = replicate(comm, model, exempt=None, **options)
        for i in range(N_STEPS):
            if i == 5 and comm.rank == 0:
                # An update whose gradients are there already.
                model.cleargrads()
                model(x[own], t[own]).backward()
                optimizer.update()
            else:
                optimizer.update(model, x[own], t[own])
        reached.append(values_of(model))
        assert_alike(comm, model)
        # The order in which gradients were complete is part of a snapshot.
        order = optimizer._averaging.order
        assert len(order) == (overlap and len(list(model.params())))
        again = replicate(comm, make_model(), exempt=None, **options)
        read(again, written(optimizer))
        assert again._averaging.order == order
        again.close()
        optimizer.close()
    assert reached[0] == reached[1]


def test_an_exchange_during_backward_changes_nothing():
    assert_on_ranks(2, during_backward)
