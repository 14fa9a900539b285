"""Short training scripts, and what ``divisible port`` makes of them."""

import difflib

from pipeline.porting.porting import port

TEMPLATE = """\
import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from chainer import serializers, training
from chainer.training import extensions

np.random.seed(0)
{before}
model = {model}
optimizer = chainer.optimizers.{optimizer}
optimizer.setup(model)
updater = {updater}
trainer = training.Trainer(updater, (1, 'epoch'))
{after}
trainer.run()
{end}
"""


def training_script(
    model="L.Classifier(net)",
    updater="training.StandardUpdater(train_iter, optimizer)",
    optimizer="Adam()",
    before="",
    after="",
    end="",
):
    """Returns a script with these parts."""
    return TEMPLATE.format(
        model=model,
        updater=updater,
        optimizer=optimizer,
        before=before,
        after=after,
        end=end,
    )


def added(source, neighbours=None):
    """Returns the lines that a port has, and its script has not, without blanks."""
    ported = port(source, neighbours)
    assert ported.text is not None, ported.obstacles
    difference = difflib.ndiff(source.splitlines(), ported.text.splitlines())
    return [line[2:].strip() for line in difference if line.startswith("+ ")]


def removed(source):
    """Returns the lines that a script has, and its port has not, without blanks."""
    text = port(source).text
    difference = difflib.ndiff(source.splitlines(), text.splitlines())
    return [line[2:].strip() for line in difference if line.startswith("- ")]


def obstacles(source, neighbours=None):
    """Returns the line, the text and the page of each obstacle."""
    ported = port(source, neighbours)
    assert ported.text is None
    return [(each.line, each.text, each.page) for each in ported.obstacles]
