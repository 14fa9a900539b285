"""onnx_chainer exports with today's onnx, and its reference evaluator agrees."""

import io
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from examples.autoencoder.model import Autoencoder
from examples.language_model.model import LanguageModel
from examples.loss_curves.train import Network
from examples.paper_loop.train import NN
from examples.train.models.cnn import CNN
from examples.train.models.mlp import MLP
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16
from examples.unet.model import UNet

onnx = pytest.importorskip("onnx", "1.16")


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(autouse=True)
def seeded():
    np.random.seed(0)


def evaluate(exported, *inputs):
    from onnx.reference import ReferenceEvaluator

    feeds = {f"Input_{i}": array for i, array in enumerate(inputs)}
    return ReferenceEvaluator(exported).run(None, feeds)


def check(model, *inputs, **options):
    """Compares Chainer's outputs and those of the exported model; returns it."""
    import onnx_chainer

    exported = onnx_chainer.export(model, list(inputs), **options)
    with chainer.using_config("train", False):
        expected = model(*map(chainer.Variable, inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for value, y in zip(evaluate(exported, *inputs), expected):
        assert value.dtype == y.dtype
        scale = max(1.0, abs(y.array).max())
        np.testing.assert_allclose(value, y.array, rtol=0, atol=2e-6 * scale)
    return exported


def images(n_samples, n_channels, size):
    return np.random.rand(n_samples, n_channels, size, size).astype("f")


EXAMPLES = {
    "autoencoder": lambda: (Autoencoder(), np.random.rand(3, 64).astype("f")),
    "language_model": lambda: (LanguageModel(20, 8), np.arange(18, dtype="i") % 20),
    "loss_curves": lambda: (Network(8), np.random.rand(2, 3072).astype("f")),
    "paper_loop": lambda: (NN(), np.random.rand(3, 32).astype("f")),
    "cnn": lambda: (CNN(n_channels=4), images(2, 1, 8)),
    "mlp": lambda: (MLP(16, 4), np.random.rand(3, 16).astype("f")),
    "resnet50": lambda: (ResNet50(), images(1, 3, 32)),
    "resnet50_inside": lambda: (
        ResNet50(2, 224, cut_inside_blocks=True),
        images(1, 3, 32),
    ),
    "vgg16": lambda: (VGG16(), images(1, 3, 32)),
    "unet": lambda: (UNet(width=4), images(2, 1, 8)),
}
LARGE = {name for name in EXAMPLES if name.startswith(("resnet50", "vgg16"))}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name
        for name in EXAMPLES
    ],
)
def test_model_of_an_example(name):
    model, x = EXAMPLES[name]()
    check(model, x.reshape(3, 6) if name == "language_model" else x)


@pytest.mark.parametrize("opset", range(7, 12))
def test_every_opset(opset):
    model = chainer.Sequential(
        *(L.Convolution2D(1, 4, 3), F.relu, lambda x: F.max_pooling_2d(x, 2)),
        *(L.Linear(36, 5), lambda x: F.reshape(x, (2, 5, 1)), lambda x: 2 * x[:, 1:4]),
        lambda x: F.cast(F.cast(x, "d") + 1, "f"),
    )
    exported = check(model, images(2, 1, 8), opset_version=opset)
    assert [o.version for o in exported.opset_import] == [opset]
    # The oldest format that has the opset, for any runtime to read.
    assert exported.ir_version == {7: 3, 8: 3, 9: 4, 10: 5, 11: 6}[opset]


def test_newer_opsets_come_by_conversion():
    from onnx import version_converter

    model, x = EXAMPLES["language_model"]()
    exported = check(model, x.reshape(3, 6))
    converted = version_converter.convert_version(exported, 17)
    np.testing.assert_allclose(
        *(evaluate(which, x.reshape(3, 6))[0] for which in (exported, converted)),
        rtol=1e-6,
    )


def test_batch_normalization_keeps_its_averages():
    model = L.BatchNormalization(3)
    model(images(8, 3, 4))
    check(model, images(2, 3, 4))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_constants_of_every_dtype(dtype):
    x = np.arange(-3, 3).astype(dtype)
    exported = check(lambda_link(lambda x: 2 * x + 1), x)
    (constant, *_) = [n for n in exported.graph.node if n.op_type == "Constant"]
    assert onnx.numpy_helper.to_array(constant.attribute[0].t) == 2


def test_indices_and_losses():
    x, t = np.random.rand(4, 3).astype("f"), np.array([0, 2, 1, 2], "i")
    check(lambda_link(lambda x: F.argmax(x, axis=1)), x)
    check(lambda_link(lambda x: x[:, 1:, None]), x)
    check(lambda_link(lambda x: F.select_item(x, t)), x)
    check(lambda_link(F.softmax_cross_entropy), x, t)


def lambda_link(function):
    class Lambda(chainer.Chain):
        def forward(self, *inputs):
            return function(*inputs)

    return Lambda()


def test_recurrent_function_is_replaced():
    """``n_step_gru`` is exported as one function, by patching it meanwhile."""
    (layer,) = L.NStepGRU(1, 3, 4, 0.0)
    weights = [getattr(layer, f"w{i}") for i in range(6)]
    biases = [getattr(layer, f"b{i}") for i in range(6)]

    def last_state(h, x):
        return F.n_step_gru(1, 0.0, h, [weights], [biases], list(F.separate(x)))[0]

    h, x = np.random.rand(1, 2, 4).astype("f"), np.random.rand(5, 2, 3).astype("f")
    check(lambda_link(last_state), h, x)


def test_functions_and_converters_of_users():
    import onnx_chainer
    from onnx_chainer.replace_func import as_funcnode

    @as_funcnode("Thrice")
    def thrice(x, factor=3):
        return x * factor

    def convert(parameters):
        return (
            onnx.helper.make_node(
                "Thrice",
                parameters.input_names,
                parameters.output_names,
                domain="mine",
                factor=parameters.func.factor,
            ),
        )

    exported = onnx_chainer.export(
        lambda_link(thrice),
        images(1, 1, 2),
        external_converters={"Thrice": convert},
        external_opset_imports={"mine": 1},
    )
    (node,) = exported.graph.node
    assert (node.op_type, node.domain, node.attribute[0].i) == ("Thrice", "mine", 3)


def test_file(tmp_path):
    import onnx_chainer

    model, x = MLP(4, 2), np.random.rand(2, 4).astype("f")
    file = io.BytesIO()
    with pytest.warns(DeprecationWarning, match="Use export_testcase instead"):
        onnx_chainer.export(model, x, file)
    exported = onnx.load_model_from_string(file.getvalue())
    np.testing.assert_allclose(evaluate(exported, x)[0], model(x).array, rtol=1e-6)


def test_testcase_with_gradients_of_several_outputs(tmp_path):
    import onnx_chainer

    class Two(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.linear = L.Linear(3, 2)

        def forward(self, x):
            y = self.linear(x)
            return {"y": y, "double": 2 * y}

    model, x = Two(), np.random.rand(2, 3).astype("f")
    onnx_chainer.export_testcase(model, [x], str(tmp_path), output_grad=True)

    def read(name):
        tensor = onnx.load_tensor(str(tmp_path / "test_data_set_0" / f"{name}.pb"))
        return onnx.numpy_helper.to_array(tensor)

    exported = onnx.load(str(tmp_path / "model.onnx"))
    np.testing.assert_array_equal(read("input_0"), x)
    for i, value in enumerate(evaluate(exported, x)):
        np.testing.assert_allclose(read(f"output_{i}"), value, rtol=1e-6)
    np.testing.assert_allclose(read("gradient_0"), [3 * x.sum(axis=0)] * 2, rtol=1e-6)
    np.testing.assert_array_equal(read("gradient_1"), [6, 6])
