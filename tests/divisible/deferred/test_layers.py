"""The links that Chainer ships, built in deferred_init."""

import inspect

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init
from divisible.deferred.array import DeferredArray

TREE = ((0, 1), (2, (3, 4)))
LINKS = {
    "BatchNormalization": lambda: L.BatchNormalization(4),
    "BatchRenormalization": lambda: L.BatchRenormalization(4),
    "Bias": lambda: L.Bias(1, (3,)),
    "Bilinear": lambda: L.Bilinear(3, 4, 5),
    "BinaryHierarchicalSoftmax": lambda: L.BinaryHierarchicalSoftmax(3, TREE),
    "BlackOut": lambda: L.BlackOut(3, [1, 2, 3], 2),
    "CRF1d": lambda: L.CRF1d(4),
    "ChildSumTreeLSTM": lambda: L.ChildSumTreeLSTM(3, 4),
    "Classifier": lambda: L.Classifier(L.Linear(3, 4)),
    "Convolution1D": lambda: L.Convolution1D(3, 4, 3),
    "Convolution2D": lambda: L.Convolution2D(3, 4, 3),
    "Convolution3D": lambda: L.Convolution3D(3, 4, 3),
    "ConvolutionND": lambda: L.ConvolutionND(3, 3, 4, 3),
    "Deconvolution1D": lambda: L.Deconvolution1D(3, 4, 3),
    "Deconvolution2D": lambda: L.Deconvolution2D(3, 4, 3),
    "Deconvolution3D": lambda: L.Deconvolution3D(3, 4, 3),
    "DeconvolutionND": lambda: L.DeconvolutionND(3, 3, 4, 3),
    "DecorrelatedBatchNormalization": lambda: L.DecorrelatedBatchNormalization(32),
    "DeformableConvolution2D": lambda: L.DeformableConvolution2D(3, 4, 3),
    "DepthwiseConvolution2D": lambda: L.DepthwiseConvolution2D(3, 2, 3),
    "DilatedConvolution2D": lambda: L.DilatedConvolution2D(3, 4, 3),
    "EmbedID": lambda: L.EmbedID(5, 4),
    "GRU": lambda: L.GRU(3, 4),
    "GroupNormalization": lambda: L.GroupNormalization(2, 4),
    "Highway": lambda: L.Highway(4),
    "Inception": lambda: L.Inception(3, 4, 4, 4, 4, 4, 4),
    "InceptionBN": lambda: L.InceptionBN(3, 4, 4, 4, 4, 4, "max", 4),
    "LSTM": lambda: L.LSTM(3, 4),
    "LayerNormalization": lambda: L.LayerNormalization(4),
    "Linear": lambda: L.Linear(3, 4),
    "LocalConvolution2D": lambda: L.LocalConvolution2D(3, 4, (8, 8), 3),
    "MLPConvolution2D": lambda: L.MLPConvolution2D(3, (4, 4), 3),
    "Maxout": lambda: L.Maxout(3, 4, 2),
    "NStepBiGRU": lambda: L.NStepBiGRU(2, 3, 4, 0.1),
    "NStepBiLSTM": lambda: L.NStepBiLSTM(2, 3, 4, 0.1),
    "NStepBiRNNReLU": lambda: L.NStepBiRNNReLU(2, 3, 4, 0.1),
    "NStepBiRNNTanh": lambda: L.NStepBiRNNTanh(2, 3, 4, 0.1),
    "NStepGRU": lambda: L.NStepGRU(2, 3, 4, 0.1),
    "NStepLSTM": lambda: L.NStepLSTM(2, 3, 4, 0.1),
    "NStepRNNReLU": lambda: L.NStepRNNReLU(2, 3, 4, 0.1),
    "NStepRNNTanh": lambda: L.NStepRNNTanh(2, 3, 4, 0.1),
    "NaryTreeLSTM": lambda: L.NaryTreeLSTM(3, 4, 2),
    "NegativeSampling": lambda: L.NegativeSampling(3, [1, 2, 3], 2),
    "PReLU": lambda: L.PReLU((3,)),
    "Parameter": lambda: L.Parameter(np.ones(3, np.float32)),
    "Scale": lambda: L.Scale(1, (3,), bias_term=True),
    "SimplifiedDropconnect": lambda: L.SimplifiedDropconnect(3, 4),
    "StatefulGRU": lambda: L.StatefulGRU(3, 4),
    "StatefulMGU": lambda: L.StatefulMGU(3, 4),
    "StatefulPeepholeLSTM": lambda: L.StatefulPeepholeLSTM(3, 4),
    "StatefulZoneoutLSTM": lambda: L.StatefulZoneoutLSTM(3, 4),
    "StatelessGRU": lambda: L.StatelessGRU(3, 4),
    "StatelessLSTM": lambda: L.StatelessLSTM(3, 4),
    "StatelessMGU": lambda: L.StatelessMGU(3, 4),
    "Swish": lambda: L.Swish((3,)),
}
# Another library's functions, and models that consist of the links above.
LEFT_OUT = ["TheanoFunction", "VGG16Layers", "VGG19Layers", "GoogLeNet"]
LEFT_OUT += [f"ResNet{n}Layers" for n in (50, 101, 152)]


def test_all_of_chainers_links_are_known():
    links = {
        name
        for name, kind in vars(L).items()
        if inspect.isclass(kind) and issubclass(kind, chainer.Link)
    }
    assert links == {*LINKS, *LEFT_OUT}


def build(name):
    with deferred_init(seed=3):
        return Divisible(LINKS[name]())


def sizes(model):
    return {
        path: (param.shape if param.is_initialized else None, param.dtype)
        for path, param in model.namedparams()
    }


@pytest.mark.parametrize("name", LINKS)
def test_every_link(name):
    model, eager = build(name), Divisible(LINKS[name]())
    assert sizes(model) == sizes(eager)
    assert str(model) == str(eager)
    given = name == "Parameter"  # its array is the caller's
    for param in model.params():
        assert given or isinstance(param.array, (DeferredArray, type(None)))
    stage, again = model.divide(), build(name).divide()
    theirs, once_more = dict(eager.namedparams()), dict(again.namedparams())
    for path, param in stage.namedparams():
        if param.array is not None:
            assert type(param.array) is type(param.grad) is np.ndarray
            np.testing.assert_array_equal(param.array, once_more[path].array)
            other = theirs[path].array
            if len(np.unique(other)) == 1:  # a constant; BlackOut's is NaN
                np.testing.assert_array_equal(param.array, other)
            else:
                assert len(np.unique(param.array)) > 1
