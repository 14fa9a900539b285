"""Arrays on a GPU are exchanged as those of the host are, bit for bit.

Where there is no GPU, on a device that is made up of NumPy's arrays.
"""

import warnings
from contextlib import contextmanager
from unittest import mock

import chainer
import numpy as np
import pytest
from chainer import optimizers
from chainer.serializers import DictionarySerializer, NpzDeserializer

from data_parallel import Exchange, create_multi_node_optimizer, simulate_exchange
from divisible.communication.errors import DisagreementError
from divisible.communication.wire import WIRE, WireDtype
from mixed_precision import (
    DynamicLossScale,
    MixedPrecision,
    float32_loss,
    to_float16,
)
from tests.mpi.data_parallel.test_error_feedback import gradients_of
from tests.mpi.data_parallel.test_many_arrays import BLOCK, EXEMPT, arrays_of
from tests.support.fake_gpu import fake_gpu
from tests.support.gpu import NEEDS_GPU
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import make_batches, make_model, parts_of

TIMEOUT = 30
OPTIONS = {"minimum": 0, "block": BLOCK, "timeout": TIMEOUT}
PAPER = {"exchange_dtype": "fp8", "strategy": "oyama2017"}
HOST = chainer.get_device("@numpy")
DEVICES = ["fake", pytest.param("@cupy:0", marks=NEEDS_GPU)]


@contextmanager
def device_named(name):
    if name == "fake":
        with fake_gpu() as device:
            yield device
    else:
        yield chainer.get_device(name)


def one_array(comm, name):
    """In all wire dtypes and nodes, and in the paper's way."""
    ways = [{"exchange_dtype": exchange_dtype} for exchange_dtype in WIRE] + [PAPER]
    with device_named(name) as device:
        for local_size in range(1, comm.size + 1):
            for way in ways:
                if comm.size % local_size == 0 or way is not PAPER:
                    as_simulated(comm, device, local_size, way)
        # What no kernels are written for is coded on the host.
        with mock.patch.object(WireDtype, "has_kernels", False):
            as_simulated(comm, device, 1, {"exchange_dtype": "int8"})


def as_simulated(comm, device, local_size, way):
    options = {"local_size": local_size, "block": BLOCK, **way}
    with Exchange(
        comm, minimum=0, chunk_bytes=8192, every=1, timeout=TIMEOUT, **options
    ) as exchange:
        cases = [(1, None), (5000, [3, 0, 5, 7][: comm.size])]
        for renewal, (n, n_samples) in enumerate(cases):
            gradients, weights = gradients_of(0, comm.size, n), None
            if way is PAPER:
                weights = np.random.RandomState(9).standard_normal(n).astype("f")
            expected = simulate_exchange(
                gradients,
                n_samples=n_samples,
                weights=weights,
                renewal=renewal,
                **options,
            )
            array = device.send(gradients[comm.rank].copy())
            exchange.mean(
                [array],
                weights=weights if weights is None else [device.send(weights)],
                n_samples=n_samples and n_samples[comm.rank],
            )
            assert type(array) in device.supported_array_types
            where = local_size, way, n
            assert HOST.send(array).tobytes() == expected.mean.tobytes(), where
            assert comm.allreduce(exchange.sent_bytes, max) == expected.sent_bytes


def error_feedback(comm, name):
    """Also over a snapshot, which the host goes on from, and the device again."""
    places = [True, True, False, True]
    for local_size in range(1, comm.size):
        for exchange_dtype in WIRE:
            options = {"local_size": local_size, "block": BLOCK}
            state, residuals = None, [np.zeros(1000, "f")] * comm.size
            for step, is_on_device in enumerate(places):
                gradients = gradients_of(step, comm.size)
                expected = simulate_exchange(
                    gradients,
                    exchange_dtype=exchange_dtype,
                    residuals=residuals,
                    **options,
                )
                residuals = expected.residuals
                with (
                    device_named(name) as device,
                    Exchange(
                        comm,
                        exchange_dtype=exchange_dtype,
                        minimum=0,
                        error_feedback=True,
                        timeout=TIMEOUT,
                        **options,
                    ) as exchange,
                ):
                    if state is not None:
                        exchange.serialize(NpzDeserializer(state))
                    array = gradients[comm.rank]
                    array = device.send(array) if is_on_device else array
                    exchange.mean([array])
                    where = local_size, exchange_dtype, step
                    assert HOST.send(array).tobytes() == expected.mean.tobytes(), where
                    kept = exchange.kept.residuals["0"]
                    # Without kernels, gradients are coded on the host.
                    has_kernels = WIRE[exchange_dtype].has_kernels
                    assert type(kept) is type(
                        array if has_kernels else HOST.send(array)
                    )
                    assert HOST.send(kept).tobytes() == residuals[comm.rank].tobytes()
                    # Loss scales are powers of two.
                    exchange.scale_residuals(0.5)
                    exchange.scale_residuals(2)
                    serializer = DictionarySerializer()
                    exchange.serialize(serializer)
                    state = {
                        key: np.array(HOST.send(value))
                        for key, value in serializer.target.items()
                    }


def shared_out(comm, name):
    """A rank that has loaded another's gets the mean, on its device."""
    with device_named(name) as device:
        options = {"error_feedback": True, "local_size": 1, **OPTIONS}
        with Exchange(comm, exchange_dtype="int8", **options) as exchange:
            exchange.mean([device.send(gradients_of(0, comm.size)[comm.rank])])
            serializer = DictionarySerializer()
            exchange.serialize(serializer)
            state = {k: np.array(HOST.send(v)) for k, v in serializer.target.items()}
            states = comm.allgather(state)
            residuals = comm.allgather(HOST.send(exchange.kept.residuals["0"]))
            exchange.serialize(NpzDeserializer(states[1 - comm.rank]))
            array = device.send(np.zeros(1000, "f"))
            exchange.mean([array])
        found = HOST.send(array)
    before = (residuals[0] + residuals[1]) / np.float32(2)
    zeros = [np.zeros(1000, "f")] * 2
    expected = simulate_exchange(
        zeros, exchange_dtype="int8", block=BLOCK, residuals=[before] * 2
    )
    assert found.tobytes() == expected.mean.tobytes()


def damaged(rank):
    """Arrays of all kinds, of which some are missing or not finite on a rank."""
    arrays = arrays_of(rank)
    if rank == 1:
        arrays[1][7] = np.nan
        arrays[9][2] = np.inf
        arrays[0] = arrays[10] = None
    arrays[2] = None
    return arrays


def exchanged(exchange, specs, arrays):
    exchange.begin(lambda: specs, None, None)
    for i, array in enumerate(arrays):
        exchange.put(i, array)
    return exchange.finish()


def many_arrays(comm, name):
    """As those of the host; on one rank they stay there."""
    from data_parallel.arrays import specs_of

    with (
        device_named(name) as device,
        Exchange(
            comm,
            exchange_dtype="int8",
            local_size=1,
            chunk_bytes=2000,
            error_feedback=True,
            **OPTIONS,
        ) as exchange,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        specs = specs_of(arrays_of(comm.rank), EXEMPT)
        expected = exchanged(exchange, specs, damaged(comm.rank))
        if comm.rank:
            specs = tuple(spec._replace(device=device) for spec in specs)
        where = specs[0].device
        arrays = [a if a is None else where.send(a) for a in damaged(comm.rank)]
        found = exchanged(exchange, specs, arrays)
        of_host = [b if b is None else HOST.send(b) for b in found]
    assert expected[2] is None and found[2] is None
    for given, a, b, its in zip(arrays, expected, of_host, found):
        if its is not None:
            assert type(its) in where.supported_array_types
            assert given is its or given is None
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            # NaN has many bits.
            np.testing.assert_array_equal(a, b)
    assert np.isnan(expected[1]).all() and np.isinf(expected[9][2])


def refused(comm, name):
    with (
        device_named(name) as device,
        Exchange(comm, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange,
    ):
        arrays = [np.ones(40, "f"), np.ones(50, "f")]
        words = rf"array 1 is on {device}, but 0 on @numpy: exchange arrays of one"
        with pytest.raises(
            TypeError if comm.rank == 1 else DisagreementError, match=words
        ):
            moved = device.send(arrays[1]) if comm.rank == 1 else arrays[1]
            exchange.mean([arrays[0], moved])
        exchange.mean([device.send(array) for array in arrays])


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    "case", [one_array, error_feedback, shared_out, many_arrays, refused]
)
def test_a_gpu_exchanges_as_the_host_does(case, name):
    assert_on_ranks(2, case, name)


def test_nodes_of_several_ranks():
    assert_on_ranks(3, one_array, "fake")
    assert_on_ranks(3, error_feedback, "fake")


def trained(comm, device, is_mixed, **options):
    """Returns the parameters and losses, from another seed on each rank."""
    model = make_model(seed=comm.rank)
    inner = optimizers.MomentumSGD(0.1)
    if is_mixed:
        to_float16(model)
        model.lossfun = float32_loss(model.lossfun)
        inner = MixedPrecision(inner, loss_scale=DynamicLossScale(2.0**10), comm=comm)
    model.to_device(device)
    optimizer = create_multi_node_optimizer(
        inner, comm, local_size=1, minimum=0, timeout=TIMEOUT, **options
    ).setup(model)
    own, losses = parts_of([4] * comm.size, comm.rank), []
    dtype = np.float16 if is_mixed else np.float32
    with warnings.catch_warnings():
        # That values differ at first.
        warnings.simplefilter("ignore")
        for x, t in make_batches(1, 4 * comm.size) * 40:
            x, t = device.send((x[own].astype(dtype), t[own]))
            optimizer.update(model, x, t)
            losses.append(comm.allreduce(float(model.loss.array)))
    optimizer.close()
    assert all(param.device == device for param in model.params())
    arrays = [HOST.send(p.array) for _, p in sorted(model.namedparams())]
    return arrays, losses


def training(comm):
    device = chainer.get_device("@cupy:0")
    ways = [
        {},
        {"exchange_dtype": "int8", "error_feedback": True},
        {"exchange_dtype": "int8", "double_buffering": True},
        {"exchange_dtype": "int8", "overlap": True},
        PAPER,
    ]
    for way in ways:
        for is_mixed in (False, True):
            on_host, on_device = (
                trained(comm, each, is_mixed, **way) for each in (HOST, device)
            )
            where = way, is_mixed
            for arrays, losses in (on_host, on_device):
                assert losses[-1] < 0.5 * losses[0], where
                bits = b"".join(array.tobytes() for array in arrays)
                assert len(set(comm.allgather(bits))) == 1, where
            tolerance = 0.1 if is_mixed or way else 1e-3
            for a, b in zip(on_host[0], on_device[0]):
                difference = np.linalg.norm(a.astype("d") - b)
                assert difference <= tolerance * np.linalg.norm(a.astype("d")), where


@pytest.mark.gpu
@NEEDS_GPU[1]
def test_a_model_on_a_gpu_trains_as_on_the_host():
    assert_on_ranks(2, training, timeout=120)
