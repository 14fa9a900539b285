"""Replicas of a small classifier, beside a serial one."""

import io

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizers

from data_parallel import create_multi_node_optimizer

N_STEPS = 8


TIMEOUT = 30


CODED = {"exchange_dtype": "int8", "local_size": 1, "minimum": 0}


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


def written(thing):
    file = io.BytesIO()
    chainer.serializers.save_npz(file, thing)
    return file.getvalue()


def read(thing, data):
    chainer.serializers.load_npz(io.BytesIO(data), thing)
