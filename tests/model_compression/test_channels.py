import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, pop, stash
from model_compression.channels import channels_of
from model_compression.layer_lines import KEEP_ZEROS, notes
from model_compression.selection import weighted_layers

RULE = "Prune('l1', '/0')"


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
    ],
)
def test_channels_that_are_needed_are_refused_with_the_layer(model, words):
    with pytest.raises(ValueError, match=words) as caught:
        followed("/0/W", model)
    assert RULE in str(caught.value) and "/0/W" in str(caught.value)


def test_channels_of_tied_or_repeated_layers_are_refused():
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 4), F.relu, L.Linear(4, 4))
    model.tie("/0/W", "/4/W")
    with pytest.raises(ValueError, match="used at 2 places"):
        followed("/0/W", model)
    with pytest.raises(ValueError, match="elements of /0/W would go, which several"):
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


@pytest.mark.parametrize(
    "first, words",
    [
        (L.Deconvolution2D(3, 4, 3), "/0 is Deconvolution2D, and channels are taken"),
        (L.Convolution2D(4, 4, 3, groups=2), "/0 is Convolution2D with groups, and"),
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
