# ruff: noqa: E402
"""Trains VGG16 of chainercv by two steps, and evaluates boxes.

The package's one extension is for GPUs, and no longer builds. Nothing else needs it.
"""

import sys
import types

import chainer
import numpy as np

sys.modules["chainercv.utils.bbox._nms_gpu_post"] = types.SimpleNamespace(
    _nms_gpu_post=None
)

from chainercv.chainer_experimental.datasets.sliceable import TupleDataset
from chainercv.evaluations import eval_detection_voc
from chainercv.links import VGG16, FasterRCNNVGG16
from chainercv.transforms import random_flip, resize
from chainercv.utils import non_maximum_suppression

image = random_flip(resize(np.random.rand(3, 60, 80).astype("f"), (224, 224)))
data = TupleDataset(("img", [image, image]), ("label", [0, 1]))
model = chainer.links.Classifier(VGG16(n_class=3))
optimizer = chainer.optimizers.MomentumSGD(1e-3).setup(model)
losses = []
for _ in range(2):
    x = np.stack([sample[0] for sample in data])
    t = np.array([sample[1] for sample in data], np.int32)
    optimizer.update(model, x, t)
    losses.append(float(model.loss.array))
assert np.isfinite(losses).all()

boxes = np.array([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], "f")
assert non_maximum_suppression(boxes, 0.5).tolist() == [0, 2]
labels, scores = np.zeros(3, np.int32), np.array([0.9, 0.8, 0.7], "f")
found = eval_detection_voc([boxes], [labels], [scores], [boxes[[0, 2]]], [labels[:2]])
assert 0 < found["map"] <= 1

detector = FasterRCNNVGG16(
    n_fg_class=2, pretrained_model=None, min_size=64, max_size=96
)
with chainer.using_config("train", False):
    detector.predict([np.random.rand(3, 64, 64).astype("f") * 255])
