"""``strategy='oyama2017'`` alone: the settings of the paper, in one optimizer."""

import json

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from mpi4py import MPI

from data_parallel import (
    Exchange,
    Grid,
    create_multi_node_optimizer,
    simulate_exchange,
)
from divisible import Divisible
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    assert_alike,
    make_batches,
    make_model,
    parts_of,
    read,
    replicate,
    values_of,
    written,
)

PRESET = {"strategy": "oyama2017", "local_size": 1}
LR, MOMENTUM = 0.1, 0.9


class Reference:
    """Algorithm 1 and momentum SGD with NumPy, for the parameters of a link."""

    def __init__(self, link, fp32_first, every, **options):
        self.arrays = {name: p.array.copy() for name, p in link.namedparams()}
        self.velocities = {n: np.zeros_like(a) for n, a in self.arrays.items()}
        self.q, self.n = {}, 0
        self.fp32_first, self.every, self.options = fp32_first, every, options

    def update(self, gradients):
        """Applies the gradients of all ranks, by name."""
        coded = self.n - self.fp32_first
        self.n += 1
        for name, each in gradients.items():
            if coded < 0:
                found = simulate_exchange(each, exchange_dtype="fp32")
            else:
                found = simulate_exchange(
                    each,
                    strategy="oyama2017",
                    weights=self.arrays[name],
                    q=self.q[name] if coded % self.every else None,
                    array=name,
                    renewal=coded // self.every,
                    **self.options,
                )
                self.q[name] = found.q
            velocity = self.velocities[name]
            velocity *= np.float32(MOMENTUM)
            velocity -= np.float32(LR) * found.mean
            self.arrays[name] += velocity


def as_in_the_paper(comm, n_updates, fp32_first, every, options):
    """Compares each update with NumPy's, of weights and of biases."""
    np.random.seed(0)
    link = L.Linear(60, 40)
    link.b.array[...] = np.random.standard_normal(40)
    optimizer = replicate(comm, link, optimizers.MomentumSGD(LR), **PRESET, **options)
    simulated = {k: v for k, v in options.items() if k not in ("every", "fp32_first")}
    reference = Reference(link, fp32_first, every, **simulated)
    random = np.random.RandomState(1)
    for _ in range(n_updates):
        gradients = {
            name: [
                random.standard_normal(param.shape).astype("f")
                for _ in range(comm.size)
            ]
            for name, param in link.namedparams()
        }
        for name, param in link.namedparams():
            param.grad = gradients[name][comm.rank].copy()
        optimizer.update()
        reference.update(gradients)
        for name, param in link.namedparams():
            np.testing.assert_array_equal(param.array, reference.arrays[name], name)
    assert_alike(comm, link)
    optimizer.close()


def test_100_updates_are_in_float32_and_the_others_in_8_bits():
    assert_on_ranks(2, as_in_the_paper, 203, 100, 100, {})


@pytest.mark.parametrize("options", [{}, {"ratio": False}, {"epsilon": 1e-3}])
def test_the_course_and_the_ratio_can_be_chosen(options):
    options = {"fp32_first": 2, "every": 3, "samples": 50, "seed": 4, **options}
    assert_on_ranks(2, as_in_the_paper, 7, 2, 3, options)


def coded_from_the_start(comm):
    """A dtype that is given holds for all exchanges."""
    random = np.random.RandomState(3)
    weights, *gradients = random.standard_normal((1 + comm.size, 50)).astype("f")
    array = gradients[comm.rank].copy()
    expected = simulate_exchange(gradients, strategy="oyama2017", weights=weights)
    with Exchange(comm, exchange_dtype="fp8", **PRESET) as exchange:
        exchange.mean([array], weights=[weights])
    assert array.tobytes() == expected.mean.tobytes()
    with Exchange(comm, ratio=False, fp32_first=0, **PRESET) as exchange:
        array[:] = gradients[comm.rank]
        exchange.mean([array])
    of_gradients = simulate_exchange(gradients, strategy="oyama2017", ratio=False)
    assert array.tobytes() == of_gradients.mean.tobytes()
    assert of_gradients.mean.tobytes() != expected.mean.tobytes()


def test_a_given_dtype_holds_from_the_start():
    assert_on_ranks(2, coded_from_the_start)


OPTIONS = {**PRESET, "fp32_first": 4, "every": 2, "samples": 30, "block": 16}
N_UPDATES = 10


def train_on(comm, model, optimizer, steps):
    """Returns the bytes that the ranks have sent in each update."""
    sent = []
    for x, t in make_batches(N_UPDATES, 12)[steps]:
        own = parts_of([12 // comm.size] * comm.size, comm.rank)
        optimizer.update(model, x[own], t[own])
        sent.append(comm.allreduce(optimizer.exchange.sent_bytes))
    return sent


def resumed(comm, options):
    """Goes on from a snapshot of each update, on as many ranks and on more."""
    two = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED)
    snapshots, values = [], []
    if two != MPI.COMM_NULL:
        model = make_model()
        optimizer = replicate(two, model, **options)
        for i in range(N_UPDATES):
            train_on(two, model, optimizer, slice(i, i + 1))
            snapshots.append((written(model), written(optimizer)))
        values = values_of(model)
        optimizer.close()
        for i, (of_model, of_optimizer) in enumerate(snapshots):
            model = make_model(seed=9)
            optimizer = replicate(two, model, **options)
            read(model, of_model)
            read(optimizer, of_optimizer)
            train_on(two, model, optimizer, slice(i + 1, None))
            assert values_of(model) == values, i
            optimizer.close()
    snapshots = comm.bcast(snapshots)
    model = make_model(seed=9)
    optimizer = replicate(comm, model, **options)
    of_model, of_optimizer = snapshots[1]
    read(model, of_model)
    read(optimizer, of_optimizer)
    sent = train_on(comm, model, optimizer, slice(2, None))
    assert_alike(comm, model)
    # Two more are in float32, and the others in fewer bits.
    assert sent[1] == sent[0] and max(sent[2:]) < 0.4 * sent[0]
    optimizer.close()


def test_training_resumes_in_either_phase():
    assert_on_ranks(3, resumed, OPTIONS)


def test_late_gradients_resume_in_either_phase():
    assert_on_ranks(3, resumed_late)


def resumed_late(comm):
    """With double buffering a snapshot holds a mean that is not applied yet."""
    if comm.rank == 2:
        return comm.Split(MPI.UNDEFINED)
    two = comm.Split(0)
    options = {**OPTIONS, "double_buffering": True}
    runs = []
    for i in (2, 4, 5, 7):
        model = make_model()
        optimizer = replicate(two, model, **options)
        train_on(two, model, optimizer, slice(0, i))
        states = written(model), written(optimizer)
        train_on(two, model, optimizer, slice(i, None))
        runs.append(values_of(model))
        optimizer.close()
        model = make_model(seed=9)
        optimizer = replicate(two, model, **options)
        read(model, states[0])
        read(optimizer, states[1])
        train_on(two, model, optimizer, slice(i, None))
        assert values_of(model) == runs[-1], i
        optimizer.close()
    assert len(set(runs)) == 1


def during_backward(comm):
    """Codes are added up in rank order, whenever an array comes."""
    values = []
    for overlap in (False, True):
        model = make_model()
        # A bucket holds the gradients of one layer.
        optimizer = replicate(comm, model, overlap=overlap, bucket_bytes=500, **OPTIONS)
        train_on(comm, model, optimizer, slice(None))
        assert len(optimizer.exchange.spans) > 1
        values.append(values_of(model))
        optimizer.close()
    assert values[0] == values[1]


def test_an_exchange_during_backward_has_the_same_bits():
    assert_on_ranks(2, during_backward)


def in_pipelines(comm):
    """Two replicas of two stages go from float32 to 8 bits in the same step."""
    values = []
    for overlap in (False, True):
        grid = Grid(comm, n_pipeline=2)
        np.random.seed(0)
        model = Divisible(L.Linear(10, 20), F.relu, L.Linear(20, 5))
        loss = F.softmax_cross_entropy
        with Pipeline(model, grid, n_microbatches=2, lossfun=loss) as pipe:
            optimizer = create_multi_node_optimizer(
                optimizers.MomentumSGD(0.1),
                grid.data,
                pipeline=pipe,
                overlap=overlap,
                **OPTIONS,
            )
            pipe.setup(optimizer)
            sent = []
            for x, t in make_batches(N_UPDATES, 12):
                own = parts_of([6, 6], grid.data.rank)
                pipe.step(x[own], t[own])
                optimizer.update()
                sent.append(optimizer.exchange.sent_bytes)
            assert sent[:4] == 4 * sent[:1] and max(sent[4:]) < 0.4 * sent[0]
            assert optimizer.overlap_report.startswith("during") == overlap
            values.append(values_of(optimizer.target))
            optimizer.close()
    assert values[0] == values[1]


def test_replicas_of_a_pipeline_have_the_preset_as_well():
    assert_on_ranks(4, in_pipelines)


def without_the_number_of_means(comm):
    """A snapshot of an earlier version is one of a run in 8 bits."""
    model = make_model()
    optimizer = replicate(comm, model, exchange_dtype="fp8", **PRESET)
    train_on(comm, model, optimizer, slice(0, 2))
    writer = chainer.serializers.DictionarySerializer()
    optimizer.exchange.serialize(writer)
    for key in [key for key in writer.target if key.endswith("state")]:
        state = json.loads(writer.target[key].item())
        assert state.pop("n_means") == 2
        writer.target[key] = np.array(json.dumps(state).encode())
    optimizer.close()
    with Exchange(comm, fp32_first=2, **PRESET) as exchange:
        exchange.serialize(chainer.serializers.NpzDeserializer(writer.target))
        assert exchange.kept.n_means >= 2


def test_snapshots_of_earlier_versions_are_read():
    assert_on_ranks(2, without_the_number_of_means)
