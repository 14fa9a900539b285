"""Batch normalization in a script or beside it needs one microbatch."""

import pytest

from tests.support.ported import added, training_script

BESIDE = "import chainer.links as L\nbn = L.BatchNormalization(3)\n"


@pytest.mark.parametrize(
    "before, neighbours, n",
    [
        ("", (), 4),
        ("bn = L.BatchNormalization(3)", (), 1),
        ("", (BESIDE,), 1),
        ("", (BESIDE.replace("BatchNormalization", "BatchRenormalization"),), 1),
        ("", ("from chainer.links import BatchNormalization as BN\n",), 1),
        ("", ("y = F.batch_normalization(x, g, b)\n",), 1),
        ("net = L.ResNet50Layers()", (), 1),
    ],
)
def test_batch_normalization_is_seen(before, neighbours, n):
    modules = {f"net{n}": text for n, text in enumerate(neighbours)}
    lines = added(training_script(before=before), modules)
    assert any(
        f"n_microbatches={n})" in line
        or f"n_microbatches={n}," in line
        or line.endswith(f"n_microbatches={n})")
        for line in lines
    ), lines
