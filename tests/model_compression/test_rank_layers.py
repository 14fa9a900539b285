import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible
from model_compression import Compress, CompressionPlan, Prune, Quantize
from model_compression.rank_layers import RankLayers


def alone(value):
    return [value]


def make_model():
    np.random.seed(0)
    return Divisible(L.Linear(8, 10), F.relu, L.Linear(10, 10), L.Linear(10, 4))


def test_bytes_under_a_plan():
    model = make_model()
    optimizer = chainer.optimizers.SGD().setup(model)
    plan = CompressionPlan(
        [
            Prune("magnitude", layers=["/0", "/2"], to=0.75),
            Quantize("int4", layers=["/2", "/3"]),
        ]
    )
    before = RankLayers([model], alone)
    assert before.sizes == {"/0": 320, "/2": 400, "/3": 160}
    Compress(plan, optimizer).advance(1, 0.1)
    found = RankLayers([model], alone).bytes_under(plan)
    assert found == {"/0": 80, "/2": 25 / 2, "/3": 20}


def test_stages_of_two_ranks_are_one_model():
    model = make_model()
    stages = [model.divide(0, 2), model.divide(2, 4)]
    said = []

    def gather(value):
        """Gives the value of the other rank, which has said it before."""
        said.append(value)
        return said[-2:]

    others = [RankLayers([stages[0]], alone), RankLayers([stages[0]], gather)]
    both = RankLayers([stages[1]], gather)
    whole = RankLayers([model], alone)
    assert (both.known, both.sizes) == (whole.known, whole.sizes)
    assert [*both.weights("/0")] == [] and [*both.weights("/2")] == ["/2/W"]
    assert whole.checksum() != others[0].checksum()
    model[0].W.array[0, 0] += 1
    assert whole.checksum() != RankLayers([make_model()], alone).checksum()


def test_layers_that_share_a_weight_are_one_group():
    model = Divisible(*(L.Linear(6, 6) for _ in range(4)))
    assert [*RankLayers([model], alone).groups()] == ["/0", "/1", "/2", "/3"]
    model.tie("/1/W", "/3/W", transpose=True)
    assert RankLayers([model], alone).groups() == {
        "/0": ["/0"],
        "/1": ["/1", "/3"],
        "/2": ["/2"],
    }
