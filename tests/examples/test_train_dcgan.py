"""Chainer's train_dcgan.py as a pipeline gives the log of the original."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.support.chainer_scripts import (
    assert_logs_equal,
    make_cifar,
    needs_chainer,
    originals_and_ported,
    run_script,
)

# Thin networks; and after an image the random numbers begin anew, but not by the clock.
THIN = """
import net
for network in (net.Generator, net.Discriminator):
    *others, ch, wscale = network.__init__.__defaults__
    network.__init__.__defaults__ = (*others, 16, wscale)
seed = numpy.random.seed
numpy.random.seed = lambda *words: seed(*words or (7,))
"""
# The original draws its noise by the keys of a pipeline: the images that were made are
# microbatch 0, the real ones, which it looks at first, are 1.
KEYED = """
from divisible import Divisible, RandomKey, keyed_random_state
unkeyed, n_drawn = net.add_noise, 0
positions = [15 + p for p in (1, 3, 7, 11, 15, 19, 23, 27)]
def add_noise(device, h):
    global n_drawn
    step, place = divmod(n_drawn, 16)
    n_drawn += 1
    before = [lambda h: h] * positions[place % 8]
    with keyed_random_state(RandomKey(0, step, 1 if place < 8 else 0)):
        return Divisible(*before, lambda h: unkeyed(device, h))(h)
net.add_noise = add_noise
"""
# Its optimizers wait for each other's gradients.
AFTERWARDS = """
update, waiting = chainer.optimizers.Adam.update, []
def wait(self, lossfun, *args):
    loss = lossfun(*args)
    self.target.cleargrads()
    loss.backward()
    waiting.append((self, [(p, p.grad) for p in self.target.params()]))
    if len(waiting) == 2:
        for optimizer, gradients in waiting:
            for param, gradient in gradients:
                param.grad = gradient
            update(optimizer)
        waiting.clear()
chainer.optimizers.Adam.update = wait
"""


@needs_chainer
def test_it_gives_the_log_of_the_original_with_the_same_keys(tmp_path):
    make_cifar(tmp_path / "data", 24)
    argv = ["--batchsize", 8, "--n_hidden", 6, "--display_interval", 1]

    def run(n, folder, out, n_epochs, *more, before=""):
        # Snapshots and images after two epochs.
        arguments = [*argv, "--snapshot_interval", 6, "--epoch", n_epochs, *more]
        arguments += ["--out", tmp_path / out]
        script, data = folder / "dcgan" / "train_dcgan.py", tmp_path / "data"
        printed = run_script(n, script, arguments, data, THIN + before)
        assert printed.count("iteration   gen/loss") == 1
        return json.loads((tmp_path / out / "log").read_text())

    originals, ported = originals_and_ported(tmp_path)
    expected = run(1, originals, "original", 4, before=KEYED + AFTERWARDS)
    assert len(expected) == 12 and {"gen/loss", "dis/loss"} <= set(expected[0])
    assert_logs_equal(run(2, ported, "begun", 2), expected[:6])
    saved = tmp_path / "begun" / "snapshot_iter_6"
    assert_logs_equal(run(1, ported, "resumed", 4, "--resume", saved), expected)
    for out, n in (("begun", 6), ("resumed", 12)):
        theirs, ours = (
            np.asarray(Image.open(tmp_path / o / "preview" / f"image{n:08}.png"), int)
            for o in ("original", out)
        )
        assert ours.shape == (320, 320, 3)
        np.testing.assert_allclose(ours, theirs, atol=1, err_msg=out)
    # It updates the discriminator first, which a generator's gradient goes through.
    unchanged = run(1, originals, "unchanged", 4, before=KEYED)
    assert_logs_equal(unchanged[:1], expected[:1])
    assert_logs_equal(unchanged, expected, 0.01)
    with pytest.raises(AssertionError, match="loss"):
        assert_logs_equal(unchanged, expected)
