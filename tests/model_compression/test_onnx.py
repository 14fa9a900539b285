"""What a plan has made smaller is exported as other models are."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from examples.smaller_model.train import Network
from model_compression import Compress, CompressionPlan, Prune, Quantize, apply

onnx = pytest.importorskip("onnx", "1.16")

PLANS = {
    "elements": [Prune("magnitude", layers="*", to=0.8)],
    "channels": [Prune("l2", layers=["/0", "/3"], to=0.5, granularity="channel")],
    "codebook": [Quantize("codebook4")],
    "int8": [Quantize("int8")],
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.filterwarnings("ignore")
def test_the_exported_model_gives_the_same_outputs(name):
    import onnx_chainer
    from onnx.reference import ReferenceEvaluator

    np.random.seed(0)
    model, plan = Network(), CompressionPlan(PLANS[name])
    optimizer = chainer.optimizers.SGD(0.01).setup(model)
    compress = Compress(plan, optimizer)
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    for iteration in (1, 2):
        loss = F.sum(model(x))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
    small = apply(model, plan)
    exported = onnx_chainer.export(small, [x])
    (found,) = ReferenceEvaluator(exported).run(None, {"Input_0": x})
    with chainer.using_config("train", False):
        np.testing.assert_allclose(found, small(x).array, atol=1e-5)
