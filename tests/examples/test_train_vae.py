"""Chainer's train_vae.py as a pipeline gives the log of the original."""

import json

import matplotlib.image
import numpy as np

from tests.support.chainer_scripts import (
    assert_logs_equal,
    make_mnist,
    needs_chainer,
    originals_and_ported,
    run_script,
)

# The original draws its noise by the keys of a pipeline: for each of the 4 parts of a
# minibatch in training, for each minibatch of a group of 4 in an evaluation.
KEYED = """
import chainer.functions as F
from chainer.distributions import Normal
from divisible import Divisible, RandomKey, keyed_random_state
unkeyed, n_steps, n_evaluated = Normal.sample_n, 0, 0
def sample_n(self, n):
    global n_steps, n_evaluated
    if self.loc.ndim == 1:
        return unkeyed(self, n)  # the prior's, for an image at the end
    if chainer.config.train:
        parts, first = numpy.array_split(numpy.arange(len(self.loc)), 4), 0
        key, n_steps, n_evaluated = RandomKey(0, n_steps), n_steps + 1, 0
    else:
        parts, first = [numpy.arange(len(self.loc))], n_evaluated % 4
        key, n_evaluated = RandomKey(0, n_steps, train=False), n_evaluated + 1
    drawn = []
    for i, part in enumerate(parts):
        posterior = Normal(self.loc[part], log_scale=self.log_scale[part])
        with keyed_random_state(key._replace(microbatch=first + i)):
            drawn.append(Divisible(lambda _: unkeyed(posterior, n))(posterior.loc))
    return F.concat(drawn, axis=1)
Normal.sample_n = sample_n
"""


@needs_chainer
def test_it_gives_the_log_of_the_original_with_the_same_keys(tmp_path):
    # Of 10 images the 4 microbatches have 3, 3, 2 and 2.
    argv = ["--batch-size", 10, "--dim-h", 30, "--dim-z", 4, "--beta", 0.5, "--k", 2]
    make_mnist(tmp_path / "data", 90, 80)

    def run(n, folder, out, n_epochs, *more, before=""):
        arguments = ["--epoch", n_epochs, "--out", tmp_path / out, *argv, *more]
        script, data = folder / "vae" / "train_vae.py", tmp_path / "data"
        printed = run_script(n, script, arguments, data, before)
        assert printed.count("main/loss   validation/main/loss") == 1
        return json.loads((tmp_path / out / "log").read_text())

    originals, ported = originals_and_ported(tmp_path)
    expected = run(1, originals, "original", 2, before=KEYED)
    assert {"main/reconstr", "validation/main/kl_penalty"} <= set(expected[1])
    run(2, ported, "begun", 1)
    (saved,) = (tmp_path / "begun").glob("snapshot_iter_*")
    assert_logs_equal(run(2, ported, "resumed", 2, "--resume", saved), expected)
    for name in ("train", "train_reconstructed", "test_reconstructed"):
        theirs, ours = (
            matplotlib.image.imread(tmp_path / out / f"{name}.png")
            for out in ("original", "resumed")
        )
        # A colour may be the one beside it.
        np.testing.assert_allclose(ours, theirs, atol=0.02, err_msg=name)
    assert (tmp_path / "resumed" / "sampled.png").exists()
