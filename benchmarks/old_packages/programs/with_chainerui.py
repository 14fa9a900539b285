"""Logs a training with chainerui's extensions, and enters it into its database."""

import os
import subprocess
import sys
import tempfile

import chainer
import numpy as np
from chainer import training
from chainer.training import extensions
from chainerui.extensions import CommandsExtension
from chainerui.utils import save_args

folder = tempfile.mkdtemp()
os.environ["CHAINERUI_ROOT"] = os.path.join(folder, "ui")
save_args({"lr": 0.1}, os.path.join(folder, "result"))
data = [(np.ones(4, "f"), np.int32(0))] * 8
model = chainer.links.Classifier(chainer.links.Linear(4, 2))
optimizer = chainer.optimizers.SGD(0.1).setup(model)
iterator = chainer.iterators.SerialIterator(data, 4)
updater = training.StandardUpdater(iterator, optimizer)
trainer = training.Trainer(updater, (2, "epoch"), os.path.join(folder, "result"))
trainer.extend(CommandsExtension())
trainer.extend(extensions.LogReport())
trainer.run()
for command in (
    ["db", "create"],
    ["db", "upgrade"],
    ["project", "create", "-d", folder],
):
    program = os.path.join(os.path.dirname(sys.executable), "chainerui")
    done = subprocess.run([program, *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
