import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from model_compression import (
    Compress,
    CompressionPlan,
    Prune,
    Quantize,
    apply,
    load_applied,
)

PLANS = {
    "int8": [Quantize("int8", targets=["weight", "input"])],
    "int4": [Quantize("int4", targets=["weight", "bias"], symmetric=False)],
    "output": [Quantize("int8", targets=["output"])],
    "codebook": [Quantize("codebook4")],
    "two": [
        Prune("l2", layers="/0", to=0.5, granularity="channel"),
        Quantize("codebook8", layers="/3"),
        Quantize("int8", layers="/0"),
        Quantize("int3", layers=["/0", "/3"], targets=["input"]),
    ],
}


def build():
    return Divisible(
        L.Convolution2D(2, 6, 3), L.BatchNormalization(6), F.relu, L.Linear(96, 40)
    )


def trained(plan):
    np.random.seed(0)
    model = build()
    optimizer = chainer.optimizers.MomentumSGD(0.05).setup(model)
    compress = Compress(plan, optimizer)
    rng = np.random.default_rng(0)
    for iteration in range(1, 6):
        x = rng.normal(size=(8, 2, 6, 6)).astype(np.float32)
        loss = F.mean(F.square(model(x) - 1))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
    return model, x


@pytest.mark.parametrize("name", PLANS)
def test_what_is_stored_gives_the_outputs_of_the_model(name, tmp_path):
    plan = CompressionPlan(PLANS[name])
    model, x = trained(plan)
    small = apply(model, plan)
    with chainer.using_config("train", False):
        expected, found = model(x).array, small(x).array
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        if name != "two":
            # Nothing was added up in another order.
            np.testing.assert_array_equal(found, expected)
        chainer.serializers.save_npz(tmp_path / "small.npz", small)
        again = load_applied(tmp_path / "small.npz", build(), plan)
        np.testing.assert_array_equal(again(x).array, found)
        assert [p.shape for p in again.params()] == [p.shape for p in small.params()]


def test_int8_takes_a_byte_for_a_weight(tmp_path):
    plan = CompressionPlan([Quantize("int8")])
    model, _ = trained(plan)
    small = apply(model, plan)
    assert small[3].W_whole.dtype == np.int8
    assert small[3].W_whole.shape == model[3].W.shape
    assert [path for path, _ in small.namedparams()] == [
        path for path, _ in model.namedparams() if not path.endswith("/W")
    ]
    sizes = []
    for name, each in (("model", model), ("small", small)):
        file = tmp_path / f"{name}.npz"
        chainer.serializers.save_npz(file, each, compression=False)
        sizes.append(sum(array.nbytes for array in np.load(file).values()))
    assert sizes[1] < sizes[0] / 3


def test_the_model_itself_stays():
    plan = CompressionPlan([Quantize("int8")])
    model, x = trained(plan)
    before = model(x).array
    apply(model, plan)
    assert isinstance(model[0].W, chainer.Parameter)
    np.testing.assert_array_equal(model(x).array, before)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("name", PLANS)
def test_models_can_be_pickled(name, protocol):
    plan = CompressionPlan(PLANS[name])
    model, x = trained(plan)
    for each in (model, apply(model, plan)):
        again = pickle.loads(pickle.dumps(each, protocol))
        for other in (again, copy.deepcopy(each), each.copy(mode="copy")):
            assert [type(link) for link in other.links()] == [
                type(link) for link in each.links()
            ]
            with chainer.using_config("train", False):
                np.testing.assert_array_equal(other(x).array, each(x).array)
