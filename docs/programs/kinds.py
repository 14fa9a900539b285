"""Models that need a thought in a pipeline: each with its loss and a minibatch."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, pop, stash

rng = np.random.RandomState(0)


def array(*shape):
    return rng.normal(size=shape).astype(np.float32)


# Detection
class Heads(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.score = L.Convolution2D(8, 3, 1)
            self.box = L.Convolution2D(8, 4, 1)

    def forward(self, h):
        return self.score(h), self.box(h)


def detection_loss(score, box, label, true_box, weight):
    """The mean over all cells, and the mean over those with an object."""
    classes = F.softmax_cross_entropy(score, label)
    errors = F.sum(F.huber_loss(box, true_box, 1, reduce="no"), axis=1)
    per_image = F.sum(errors * (label > 0), axis=(1, 2))
    return classes + F.mean(weight * per_image)


def convert(label, true_box):
    """Gives each image the share of a mean over the objects of the minibatch."""
    share = len(label) / max(1, np.count_nonzero(label > 0))
    return label, true_box, np.full(len(label), share, np.float32)


def detection():
    model = Divisible(
        L.Convolution2D(3, 8, 3, pad=1), F.relu, L.Convolution2D(8, 8, 3, 2, 1), F.relu,
        Heads(),
    )  # fmt: skip
    label = rng.randint(0, 3, (8, 4, 4)).astype(np.int32)
    return model, detection_loss, array(8, 3, 8, 8), convert(label, array(8, 4, 4, 4))


# U-Net
def unet():
    model = Divisible(
        L.Convolution2D(1, 4, 3, pad=1), F.relu, stash("fine"),
        lambda h: F.max_pooling_2d(h, 2), L.Convolution2D(4, 8, 3, pad=1), F.relu,
        L.Deconvolution2D(8, 4, 2, stride=2),
        pop("fine", lambda h, skipped: F.concat((h, skipped))),
        L.Convolution2D(8, 2, 3, pad=1),
    )  # fmt: skip
    label = rng.randint(0, 2, (8, 8, 8)).astype(np.int32)
    return model, F.softmax_cross_entropy, array(8, 1, 8, 8), label


# Point clouds
def point_cloud():
    model = Divisible(
        stash("points"),
        L.Convolution1D(3, 8, 1), F.relu, lambda h: F.max(h, axis=2),
        L.Linear(8, 9), lambda h: F.reshape(h, (len(h), 3, 3)),
        pop("points", F.matmul),  # turned as the transformation net wants it
        L.Convolution1D(3, 16, 1), F.relu, lambda h: F.max(h, axis=2),
        L.Linear(16, 4),
    )  # fmt: skip
    label = rng.randint(0, 4, 8).astype(np.int32)
    return model, F.softmax_cross_entropy, array(8, 3, 20), label


# Graphs
class GraphConvolution(chainer.Chain):
    def __init__(self, n_in, n_out):
        super().__init__()
        with self.init_scope():
            self.own = L.Linear(n_in, n_out)
            self.others = L.Linear(n_in, n_out, nobias=True)

    def forward(self, h, edges, is_node):
        around = self.others(F.matmul(edges, h), n_batch_axes=2)
        return F.relu(self.own(h, n_batch_axes=2) + around), edges, is_node


def mean_over_nodes(h, edges, is_node):
    n = is_node.sum(axis=1, keepdims=True)
    return F.sum(h * is_node[:, :, None], axis=1) / n


def graph():
    model = Divisible(
        GraphConvolution(5, 8), GraphConvolution(8, 8), mean_over_nodes, L.Linear(8, 1)
    )
    is_node = (np.arange(6) < rng.randint(2, 7, (8, 1))).astype(np.float32)
    edges = (rng.rand(8, 6, 6) < 0.5) * is_node[:, :, None] * is_node[:, None]
    x = array(8, 6, 5), edges.astype(np.float32), is_node
    return model, F.mean_squared_error, x, array(8, 1)


# Spiking nets
class Spike(chainer.FunctionNode):
    def forward(self, inputs):
        self.retain_inputs((0,))
        return ((inputs[0] > 0).astype(np.float32),)

    def backward(self, indexes, grads):
        (x,) = self.get_retained_inputs()
        return (grads[0] / (1 + F.absolute(x)) ** 2,)


class Spiking(chainer.Chain):
    def __init__(self, n_in, n_out):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(n_in, n_out)

    def forward(self, x):  # samples, time, units
        currents = self.fc(x, n_batch_axes=2)
        voltage, spikes = 0, []
        for t in range(x.shape[1]):
            voltage = 0.9 * voltage + currents[:, t]
            (spike,) = Spike().apply((voltage - 1,))
            voltage -= spike
            spikes.append(spike)
        return F.stack(spikes, axis=1)


def spiking():
    model = Divisible(
        Spiking(6, 12), Spiking(12, 8), lambda s: F.mean(s, axis=1), L.Linear(8, 3)
    )
    x = (rng.rand(8, 10, 6) < 0.6).astype(np.float32)
    return model, F.softmax_cross_entropy, x, rng.randint(0, 3, 8).astype(np.int32)


KINDS = detection, unet, point_cloud, graph, spiking
