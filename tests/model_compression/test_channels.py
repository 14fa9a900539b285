import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import SpectralNormalization, TimerHook, WeightStandardization

from divisible import Divisible, pop, stash
from mixed_precision.model import LinkGroup
from model_compression.channels import channels_of
from model_compression.layer_lines import KEEP_ZEROS, notes
from model_compression.selection import weighted_layers

RULE = "Prune('l1', '/0')"


class Halved(L.Linear):
    """A layer with a forward of its own, in which a row of zeros gives a half."""

    def forward(self, x):
        return super().forward(x) + 0.5


class Residual(chainer.Sequential):
    """A list of layers that adds to what they give."""

    def forward(self, x):
        return super().forward(x) + x


def hooked(link, hook):
    link.add_hook(hook)
    return link


def network(*between, reader=None):
    return Divisible(
        L.Convolution2D(2, 4, 3), *between, reader or L.Convolution2D(4, 3, 1)
    )


def followed(weight, model):
    return channels_of(weight, notes(model), RULE, weighted_layers(model))


def test_channels_go_to_the_next_layer_that_mixes_them():
    model = network(
        L.BatchNormalization(4), F.relu, functools.partial(F.max_pooling_2d, ksize=2)
    )
    found = followed("/0/W", model)
    assert found.parameters == ("/0/b", "/1/beta", "/1/gamma")
    assert found.normalizing == ("/1",)
    assert (found.reader, found.n_each, found.reading) == ("/4/W", 1, "/4")


def test_a_linear_layer_reads_all_elements_of_a_channel():
    model = network(F.relu, reader=L.Linear(36, 5))
    found = followed("/0/W", model)
    assert (found.reader, found.n_each) == ("/2/W", 9)
    hooked(model[0], TimerHook())
    assert followed("/0/W", model) == found


def test_lists_in_lists_are_one_line():
    inner = chainer.Sequential(L.Convolution2D(2, 4, 3), F.relu)
    model = L.Classifier(chainer.Sequential(inner, L.Convolution2D(4, 3, 1)))
    known = notes(model)
    (weight,) = (n.weight for n in known.values() if n.n_out == 4)
    (reader,) = (n.weight for n in known.values() if n.n_out == 3)
    assert followed(weight, model).reader == reader


def test_notes_of_stages_are_those_of_the_model():
    model = network(L.BatchNormalization(4), F.relu)
    parts = {}
    for cut in [(0, 1), (1, 3), (3, 4)]:
        parts.update(notes(model.divide(*cut)))
    assert parts == notes(model)


@pytest.mark.parametrize("name", sorted(KEEP_ZEROS))
def test_functions_that_may_stand_between_keep_a_channel_of_zeros(name):
    function = getattr(F, name)
    sizes = {"1d": 1, "2d": 2, "3d": 3, "nd": 2}
    dims = sizes.get(name.rsplit("_", 1)[-1], 2)
    x = np.random.default_rng(0).normal(size=(2, 3) + (4,) * dims)
    x = x.astype(np.float32)
    x[:, 1] = 0
    options = {"ksize": 2} if "pooling" in name else {}
    options = {"output_shape": (8, 8)} if name == "resize_images" else options
    y = function(x, **options).array
    assert y.shape[1] == 3
    assert (y[:, 1] == 0).all()
    assert (y[:, [0, 2]] != 0).any()
    # A channel's values depend on no other channel's, random ones apart.
    if name != "dropout":
        other = x.copy()
        other[:, 0] += 1
        np.testing.assert_array_equal(function(other, **options).array[:, 2], y[:, 2])


@pytest.mark.parametrize(
    "model, words",
    [
        (network(F.sigmoid), "go to layer 1, sigmoid, which may need each of them"),
        (network(lambda x: F.relu(x)), "go to layer 1, <lambda>, .* not a lambda"),
        (network(stash("h")), "go to layer 1"),
        (network(reader=F.relu), "are the outputs of the model"),
        (network(F.relu, reader=L.Linear(37, 3)), "reads 37 channels, not the 4"),
        (network(reader=L.Convolution2D(4, 4, 1, groups=2)), "with groups"),
        (Divisible(L.Linear(4, 4), stash("h"), pop("h", F.add)), "go to layer 1"),
        (network(L.GroupNormalization(2, 4)), "to layer 1, GroupNormalization, which"),
        (network(L.LayerNormalization(4)), "go to layer 1, LayerNormalization, which"),
        (network(L.DecorrelatedBatchNormalization(4)), "1, DecorrelatedBatchNormal"),
        (network(L.PReLU((4,))), "go to layer 1, PReLU, which may need each of them"),
        (network(L.Scale(W_shape=(4,))), "go to layer 1, Scale, which may need each"),
        (network(L.Bias(shape=(4,))), "go to layer 1, Bias, which may need each of"),
        (network(F.softplus), "go to layer 1, softplus, which may need each of them"),
        (network(functools.partial(F.hard_sigmoid)), "go to layer 1, hard_sigmoid, w"),
        (network(Residual(F.relu)), "layer 1, Residual with a forward of its"),
        (
            network(reader=hooked(L.Convolution2D(4, 3, 1), WeightStandardization())),
            "1, Convolution2D with a WeightStandardization hook, which may need each",
        ),
        (
            network(reader=hooked(L.Convolution2D(4, 3, 1), SpectralNormalization())),
            "1, Convolution2D with a SpectralNormalization hook, which may need each",
        ),
        (network(reader=Halved(36, 3)), "1, Halved with a forward of its own, which"),
    ],
)
def test_channels_that_are_needed_are_refused_with_the_layer(model, words):
    with pytest.raises(ValueError, match=words) as caught:
        followed("/0/W", model)
    assert RULE in str(caught.value) and "/0/W" in str(caught.value)


@pytest.mark.parametrize(
    "axis, model",
    [
        (0, network(L.BatchNormalization(axis=0))),
        ((0, 2), network(L.BatchNormalization(axis=(0, 2)))),
        ((1, 2, 3), network(F.relu, L.BatchNormalization(axis=(1, 2, 3)))),
        (
            (0, 2, 3),
            Divisible(
                L.Convolution1D(2, 4, 3),
                L.BatchNormalization(4, axis=(0, 2, 3)),
                L.Convolution1D(4, 2, 1),
            ),
        ),
    ],
)
def test_a_normalization_over_other_axes_is_refused(axis, model):
    words = ", ".join(map(str, np.atleast_1d(axis)))
    with pytest.raises(ValueError, match=f"a BatchNormalization over axis={words}, wh"):
        followed("/0/W", model)


@pytest.mark.parametrize(
    "layer, axis, reader",
    [
        (L.Linear(3, 4), 0, L.Linear(4, 2)),
        (L.Convolution1D(2, 4, 3), (0, 2), L.Convolution1D(4, 2, 1)),
        (L.Convolution2D(2, 4, 3), (0, 2, 3), L.Convolution2D(4, 2, 1)),
        (L.Convolution3D(2, 4, 3), (0, 2, 3, 4), L.Convolution3D(4, 2, 1)),
    ],
)
def test_a_normalization_over_all_other_axes_goes_with_the_channels(
    layer, axis, reader
):
    norm = L.BatchNormalization(4, axis=axis)
    found = followed("/0/W", Divisible(layer, norm, reader))
    assert found.normalizing == ("/1",) and found.reader == "/2/W"


def test_stages_that_have_one_optimizer_are_one_line():
    model = network(L.BatchNormalization(4), F.relu)
    stages = [model.divide(0, 2), model.divide(2, 4)]
    assert notes(LinkGroup(stages)) == notes(model)


def test_channels_of_tied_or_repeated_layers_are_refused():
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 4), F.relu, L.Linear(4, 4))
    model.tie("/0/W", "/4/W")
    with pytest.raises(ValueError, match="used at 2 places"):
        followed("/0/W", model)
    with pytest.raises(ValueError, match="/0/W would go, which /0 and /4 share"):
        followed("/2/W", model)
    normalized = L.BatchNormalization(4)
    model = Divisible(
        L.Linear(4, 4), normalized, L.Linear(4, 4), normalized, L.Linear(4, 2)
    )
    with pytest.raises(ValueError, match="reach /1, which is used at several places"):
        followed("/0/W", model)


def test_layers_in_no_list_are_refused():
    class Net(chainer.Chain):
        def __init__(self):
            super().__init__(first=L.Linear(4, 4), second=L.Linear(4, 4))

    with pytest.raises(ValueError, match="/first/W is in no list of layers"):
        followed("/first/W", Net())
    residual = Residual(L.Linear(4, 4), F.relu, L.Linear(4, 4))
    with pytest.raises(ValueError, match="Sequential without a forward of its own"):
        followed("/0/0/W", Divisible(residual, L.Linear(4, 2)))


@pytest.mark.parametrize(
    "first, words",
    [
        (L.Deconvolution2D(3, 4, 3), "/0 is Deconvolution2D, and channels are taken"),
        (L.Convolution2D(4, 4, 3, groups=2), "/0 is Convolution2D with groups, and"),
        (Halved(5, 4), "/0 is Halved with a forward of its own, and channels are tak"),
        (
            hooked(L.Linear(5, 4), SpectralNormalization()),
            "/0 is Linear with a SpectralNormalization hook, and channels are taken",
        ),
        (L.EmbedID(5, 4), "/0 is EmbedID, and channels are taken away only from"),
    ],
)
def test_layers_that_give_no_known_channels_are_refused_as_such(first, words):
    with pytest.raises(ValueError, match=words):
        followed("/0/W", Divisible(first, L.Linear(4, 3)))


def test_channels_that_an_embedding_or_a_layer_elsewhere_reads_are_refused():
    tied = Divisible(L.EmbedID(7, 4), L.Linear(4, 5), L.Linear(5, 4), L.Linear(4, 7))
    tied.tie("/0/W", "/3/W")

    class Net(chainer.Chain):
        def __init__(self):
            line = chainer.Sequential(L.Linear(4, 6), F.relu, L.Linear(6, 4))
            super().__init__(line=line, other=line[2])

    for model, weight, words in (
        (tied, "/2/W", "elements of /0/W would go, which /0 and /3 share"),
        (Net(), "/line/0/W", "elements of .*/W would go, which .* and .* share"),
    ):
        with pytest.raises(ValueError, match=words):
            followed(weight, model)
