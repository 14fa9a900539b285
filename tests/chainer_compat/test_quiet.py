"""No warning from within Chainer reaches a user, even with all warnings on."""

import subprocess
import sys

import pytest

EVERYDAY = """
import numpy as np, chainer, chainer.functions as F, chainer.links as L
from chainer.training import extensions
model = L.Classifier(chainer.Sequential(
    L.Convolution2D(None, 4, 3), L.BatchNormalization(4), F.relu,
    lambda x: F.max_pooling_2d(x, 2), F.dropout, L.Linear(None, 3)))
x = np.random.rand(12, 3, 8, 8).astype('f'); t = np.arange(12, dtype='i') % 3
optimizer = chainer.optimizers.Adam().setup(model)
data = chainer.datasets.TupleDataset(x, t)
updater = chainer.training.StandardUpdater(
    chainer.iterators.SerialIterator(data, 4), optimizer)
trainer = chainer.training.Trainer(updater, (2, 'epoch'), out=OUT)
test = chainer.iterators.SerialIterator(data, 4, repeat=False, shuffle=False)
trainer.extend(extensions.Evaluator(test, model))
trainer.extend(extensions.LogReport())
trainer.extend(extensions.snapshot())
trainer.run()
chainer.serializers.load_npz(OUT + '/snapshot_iter_6', trainer)
"""

CHAINERMN = """
import chainermn, chainer, numpy as np
comm = chainermn.create_communicator('naive')
optimizer = chainermn.create_multi_node_optimizer(
    chainer.optimizers.SGD(), comm).setup(chainer.links.Linear(2, 2))
chainermn.iterators.create_multi_node_iterator(
    chainer.iterators.SerialIterator([(np.zeros(2, 'f'), np.int32(0))], 1), comm)
chainermn.MultiNodeChainList(comm)
chainermn.links.MultiNodeBatchNormalization(2, comm)
"""

IMPORTS = """
import chainer, chainer.testing, chainermn, chainer.links.caffe
import chainer.exporters.caffe
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", ["default", "error"])
@pytest.mark.parametrize("script", [IMPORTS, EVERYDAY, CHAINERMN])
def test_quiet(script, level, tmp_path):
    if script is IMPORTS:
        pytest.importorskip("google.protobuf")
    code = f"OUT = {str(tmp_path)!r}\n" + script
    # matplotlib, which extensions.PlotReport looks for, is not Chainer's to mend.
    options = ["-W", level, "-W", "ignore::DeprecationWarning:pyparsing"]
    result = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_warnings_of_users_stay():
    code = "import chainer, warnings; warnings.warn('mine', DeprecationWarning)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert "DeprecationWarning: mine" in result.stderr
