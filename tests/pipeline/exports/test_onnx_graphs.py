"""ONNX graphs give the outputs of Chainer for any number of samples."""

import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible

onnx = pytest.importorskip("onnx", "1.16")


def flat(x):
    return F.reshape(x, (len(x), -1))


def with_batch_in_front(x):
    """Puts samples and steps together, and takes them apart again."""
    y = F.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    return F.reshape(F.tanh(y), x.shape)


MODELS = {
    "linear": (lambda: [L.Linear(6, 3)], (6,)),
    "flattened by a linear": (
        lambda: [L.Convolution2D(2, 4, 3), F.relu, L.Linear(16, 3)],
        (2, 4, 4),
    ),
    "flattened twice": (
        lambda: [L.Convolution2D(2, 4, 3), flat, L.Linear(16, 4), F.sigmoid],
        (2, 4, 4),
    ),
    "steps in the batch": (lambda: [with_batch_in_front, L.Linear(15, 2)], (5, 3)),
    "a linear for each step": (
        lambda: [functools.partial(F.swapaxes, axis1=1, axis2=2), L.Linear(15, 2)],
        (5, 3),
    ),
    "a scale for each channel": (lambda: [L.Scale(1, (2,)), L.Linear(8, 3)], (2, 4)),
    "groups": (
        lambda: [L.GroupNormalization(2, 4), F.relu, L.Linear(36, 3)],
        (4, 3, 3),
    ),
    "words": (lambda: [L.EmbedID(9, 4), L.Linear(20, 3)], (5,)),
}


def samples(shape, n, dtype=np.float32):
    values = np.random.default_rng(n).normal(size=(n, *shape))
    return values.astype(dtype) if dtype == np.float32 else abs(values).astype(dtype)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_any_number_of_samples(name, n):
    from onnx.reference import ReferenceEvaluator

    from pipeline.exports.onnx_graphs import BATCH, graph

    make, shape = MODELS[name]
    np.random.seed(0)
    model = Divisible(*make())
    dtype = np.int32 if name == "words" else np.float32
    with chainer.using_config("train", False):
        model(samples(shape, 2, dtype))
        made = graph(model, samples(shape, n, dtype))
        onnx.checker.check_model(made)
        evaluator = ReferenceEvaluator(made)
        for other in (1, 2, 3, 4, 9):
            x = samples(shape, other, dtype)
            (found,) = evaluator.run(None, {"Input_0": x})
            np.testing.assert_allclose(found, model(x).array, atol=1e-5)
    sides = [each.type.tensor_type.shape.dim[0] for each in made.graph.output]
    assert [side.dim_param for side in sides] == [BATCH]


@pytest.mark.parametrize(
    "layers, words",
    [
        # Four samples only, by themselves.
        ([lambda x: F.reshape(x, (4, 6))], "computes 4 samples and not 5: InvalidType"),
        # The mean over a number of samples that is a constant.
        ([lambda x: F.sum(x, axis=0, keepdims=True) * (1 / len(x))], "constant of Mul"),
        ([lambda x: x[: len(x) - 1]], "is another one for each number|constant of"),
        ([lambda x: F.concat([x] * len(x))], "is another one for each number"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_depends_on_the_number_of_samples_is_refused(layers, words):
    from pipeline.exports.onnx_graphs import graph

    with pytest.raises(ValueError, match=words) as caught:
        graph(Divisible(*layers), samples((6,), 4))
    assert "export to npz" in str(caught.value)
