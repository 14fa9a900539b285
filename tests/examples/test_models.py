import chainer
import numpy as np
import pytest

from examples.train import data
from examples.train.models.cnn import CNN
from examples.train.models.mlp import MLP
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16
from examples.unet.model import UNet


def count(model, kind):
    return sum(isinstance(link, kind) for link in model.links())


def n_parameters(model):
    return sum(param.size for param in model.params())


@pytest.fixture
def small_vgg16(monkeypatch):
    from examples.train.models import vgg16

    groups = tuple(tuple(4 for _ in group) for group in vgg16.GROUPS)
    monkeypatch.setattr(vgg16, "GROUPS", groups)
    return VGG16(n_units=8, dropout=0)


@pytest.fixture
def small_resnet50(monkeypatch):
    from examples.train.models import resnet50

    groups = tuple((n, 2) for n, _ in resnet50.GROUPS)
    monkeypatch.setattr(resnet50, "GROUPS", groups)
    return ResNet50(batch_normalization=False)


def images(n, *shape):
    return np.random.RandomState(0).uniform(0, 1, (n, *shape)).astype(np.float32)


def test_vgg16_has_16_weight_layers_among_38():
    model = VGG16(n_units=16)
    assert len(model) == 38
    assert len(VGG16(n_units=16, dropout=0)) == 36
    assert count(model, chainer.links.Convolution2D) == 13
    assert count(model, chainer.links.Linear) == 3
    convolutions = sum(
        n_parameters(link) for link in model.links() if hasattr(link, "ksize")
    )
    # As published: 138,357,544 less 123,642,856 of the fully connected layers.
    assert convolutions == 14_714_688


@pytest.mark.parametrize("size, n_inputs", [(32, 512), (224, 25088), (48, 2048)])
def test_vgg16_computes_the_inputs_of_its_first_linear_layer(size, n_inputs):
    model = VGG16(image_size=size, n_units=2)
    linear = next(li for li in model.links() if isinstance(li, chainer.links.Linear))
    assert linear.W.shape == (2, n_inputs)


def test_vgg16_refuses_images_that_vanish():
    with pytest.raises(ValueError, match="image_size is 16"):
        VGG16(image_size=16)


def test_vgg16_normalizes_after_every_convolution_if_asked():
    model = VGG16(n_units=2, batch_normalization=True)
    assert count(model, chainer.links.BatchNormalization) == 13


def test_resnet50_has_the_published_number_of_parameters():
    model = ResNet50(n_classes=1000, image_size=224)
    assert n_parameters(model) == 25_557_032
    assert count(model, chainer.links.Convolution2D) == 53
    assert len(model) == 21
    assert len(model.divide(3, 19)) == 16


def test_resnet50_without_batch_normalization_starts_sane():
    model = ResNet50(batch_normalization=False)
    assert count(model, chainer.links.BatchNormalization) == 0
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        y = model(images(2, 3, 32, 32)).array
    assert y.shape == (2, 10)
    assert 0.01 < np.abs(y).max() < 100


def test_resnet50_runs_with_batch_normalization_on_large_images(small_resnet50):
    model = ResNet50(image_size=224)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        assert model(images(1, 3, 224, 224)).shape == (1, 10)


@pytest.mark.parametrize("batch_normalization", [False, True])
def test_resnet50_cut_inside_blocks_computes_the_same(
    small_resnet50, batch_normalization
):
    x = images(4, 3, 16, 16).astype(np.float64)
    t = np.arange(4, dtype=np.int32)
    results = []
    for cut_inside_blocks in (False, True):
        np.random.seed(0)
        with chainer.using_config("dtype", np.dtype(np.float64)):
            model = ResNet50(
                batch_normalization=batch_normalization,
                cut_inside_blocks=cut_inside_blocks,
            )
            optimizer = chainer.optimizers.SGD(0.01).setup(model)
            losses = []
            for _ in range(3):
                loss = chainer.functions.softmax_cross_entropy(model(x), t)
                model.cleargrads()
                loss.backward()
                optimizer.update()
                losses.append(float(loss.array))
        results.append(losses)
    assert len(model) == (185 if batch_normalization else 136)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-7)
    assert results[0][2] != results[0][0]


def test_resnet50_cut_inside_blocks_has_the_published_number_of_parameters():
    model = ResNet50(n_classes=1000, image_size=224, cut_inside_blocks=True)
    assert n_parameters(model) == 25_557_032
    assert len(model.skips) == 16


def test_unet_is_the_published_one():
    model = UNet(width=64, depth=4)
    n_down_and_through = count(model, chainer.links.Convolution2D)
    n_up = count(model, chainer.links.Deconvolution2D)
    assert (n_down_and_through, n_up) == (19, 4)  # "In total 23 convolutional layers"
    assert len(model.skips) == 4
    assert model(images(1, 1, 32, 48)).shape == (1, 2, 32, 48)


def test_mlp_is_the_papers():
    # 63 layers: 32 fully connected ones and the activations between them.
    model = MLP(n_units=20)
    assert len(model) == 63
    assert [link.W.shape for link in model.children()] == [(20, 20)] * 31 + [(10, 20)]
    shapes = [link.W.shape for link in MLP(30, n_layers=4, n_inputs=7).children()]
    assert shapes == [(30, 7), (30, 30), (30, 30), (10, 30)]


def test_mlp_of_32_layers_passes_signal_and_gradient():
    np.random.seed(0)
    x = images(8, 64)
    model = MLP(n_units=64)
    model.cleargrads()
    loss = chainer.functions.softmax_cross_entropy(model(x), np.arange(8, dtype="i"))
    loss.backward()
    first = next(model.children()).W.grad
    assert 1e-3 < np.abs(first).max() < 10


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg16", "resnet50"])
def test_any_cut_gives_the_same_output(name, request):
    if name == "mlp":
        model, x = MLP(12, n_layers=5), images(3, 12)
    elif name == "cnn":
        # Odd sizes: pooling counts an incomplete window.
        model, x = CNN(image_shape=(2, 7, 9), n_channels=3), images(3, 2, 7, 9)
    else:
        model, x = request.getfixturevalue(f"small_{name}"), images(3, 3, 32, 32)
    expected = model(x).array
    assert expected.shape == (3, 10)
    for cut in range(1, len(model)):
        output = model.divide(cut, None)(model.divide(None, cut)(x))
        np.testing.assert_array_equal(output.array, expected)


def test_models_can_be_pickled(small_vgg16):
    import pickle

    x = images(2, 3, 32, 32)
    again = pickle.loads(pickle.dumps(small_vgg16))
    np.testing.assert_array_equal(again(x).array, small_vgg16(x).array)


def test_digits_are_split_the_same_way_for_any_seed():
    train, test = data.load("digits")
    again, _ = data.load("digits", seed=1)
    assert train.x.shape == (1437, 1, 8, 8) and test.x.shape == (360, 1, 8, 8)
    assert train.x.dtype == np.float32 and train.t.dtype == np.int32
    assert 0 <= train.x.min() < train.x.max() <= 1
    np.testing.assert_array_equal(train.x, again.x)
    both = np.concatenate([train.x, test.x]).reshape(1797, -1)
    assert sorted(np.bincount(np.concatenate([train.t, test.t])))[0] > 170
    assert len(np.unique(both, axis=0)) == 1797


def test_synthetic_images_have_the_shape_asked_for():
    train, test = data.load("synthetic", shape=(2, 5, 6), n_samples=50)
    assert train.x.shape == (40, 2, 5, 6) and test.x.shape == (10, 2, 5, 6)
    assert set(train.t) == set(range(10))


def test_enlarging_repeats_pixels_and_frames_the_rest():
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    larger = data.enlarge(data.Images(x, np.zeros(1, np.int32)), 3, 6).x
    assert larger.shape == (1, 3, 6, 6)
    np.testing.assert_array_equal(larger[0, 2, ::3, ::3], [[1, 2], [3, 4]])
    framed = data.enlarge(data.Images(x, np.zeros(1, np.int32)), 1, 5).x
    assert framed.shape == (1, 1, 5, 5) and framed.sum() == 4 * x.sum()
    with pytest.raises(ValueError, match="cannot be enlarged"):
        data.enlarge(data.Images(x, np.zeros(1, np.int32)), 3, 1)
