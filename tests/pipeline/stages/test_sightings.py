"""What is seen of a loss while it computes."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from pipeline.stages.sightings import Sighting, Watch, differ

Y = chainer.Variable(np.zeros((4, 3), np.float32))
T = np.array([0, -1, 2, -1], np.int32)
FLAGS = np.array([[0, 1, -1], [1, 1, 1], [-1, -1, -1], [0, 0, 0]], np.int32)


def watched(lossfun, t=T):
    with Watch() as watch:
        loss = lossfun(Y, t)
    return watch.sighting(loss, len(t), {t.size})


def test_a_metric_beside_the_loss_is_no_part_of_it():
    def lossfun(y, t):
        chainer.report({"masked": F.sum(y) / (t != -1).sum()})
        F.softmax_cross_entropy(y, t, ignore_label=2)
        return F.softmax_cross_entropy(y, t)

    seen = watched(lossfun)
    assert seen.whole == [(2, 4)]
    assert seen.n_counted == 2
    assert seen.scales == []


def test_without_a_graph_everything_is_seen():
    with chainer.no_backprop_mode():
        seen = watched(lambda y, t: 0.5 * F.softmax_cross_entropy(y, t))
    assert (seen.n_counted, seen.scales) == (2, [0.5])


def test_labels_of_a_sample_count_as_shares_of_it():
    seen = watched(F.sigmoid_cross_entropy, FLAGS)
    assert seen.n_counted == pytest.approx(4 * 8 / 12)


@pytest.mark.parametrize(
    "parts",
    [
        lambda y: [y[i] for i in range(4)],
        lambda y: [y[i : i + 1] for i in range(4)],
        lambda y: F.separate(y, axis=0),
        lambda y: F.split_axis(y, 4, 0),
    ],
)
def test_a_loop_over_samples_counts_them_all(parts):
    def lossfun(y, t):
        return sum(
            F.softmax_cross_entropy(F.reshape(p, (1, 3)), t[:1]) for p in parts(y)
        )

    seen = watched(lossfun)
    assert seen.is_loop
    assert seen.n_counted == 4
    assert not differ([seen, seen], {4})


def test_a_function_without_means_shows_nothing():
    assert watched(lambda y, t: F.sum(y)).shows_nothing
    assert not watched(lambda y, t: F.mean(y)).shows_nothing


def sighting(n_samples, whole=(), steps=(), totals=(), means=(), scales=()):
    return Sighting(n_samples, False, whole, steps, totals, means, scales)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        # Weights are right for one function, and for two that count alike.
        ({"whole": [(1, 4)]}, {"whole": [(3, 3)]}, False),
        ({"whole": [(1, 4)] * 2}, {"whole": [(3, 3)] * 2}, False),
        ({"whole": [(4, 4), (1, 4)]}, {"whole": [(3, 3), (3, 3)]}, True),
        # A mean over all samples beside it; one over parameters.
        ({"whole": [(1, 4)], "means": [4]}, {"whole": [(3, 3)], "means": [3]}, True),
        ({"whole": [(1, 4)], "means": [9]}, {"whole": [(3, 3)], "means": [9]}, False),
        ({"steps": [(1, 4)]}, {"steps": [(3, 3)]}, True),
        ({"steps": [(4, 4)]}, {"steps": [(3, 3)]}, False),
        # Shares of the samples, and other numbers.
        ({"scales": [1 / 8]}, {"scales": [1 / 6]}, False),
        ({"means": [20]}, {"means": [15]}, False),
        ({"means": [20]}, {"means": [17]}, True),
        ({"totals": [20]}, {"totals": [17]}, True),
        # Who knows.
        ({"scales": [1, 2]}, {"scales": [3]}, False),
    ],
)
def test_microbatches_that_differ(first, second, expected):
    assert differ([sighting(4, **first), sighting(3, **second)], {4, 3}) is expected
