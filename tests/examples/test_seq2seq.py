"""Chainer's seq2seq.py as a pipeline gives the log and translations of the original."""

import json
import re

import numpy as np

from tests.support.chainer_scripts import (
    NO_DROPOUT,
    assert_logs_equal,
    needs_chainer,
    originals_and_ported,
    run_script,
)

# LSTMs have no dropout, which draws other numbers in a pipeline; Chainer's own kernels
# and those of a pipeline call it by different names. Of nltk and progressbar2, which
# the tests do without, there are stand-ins: the score depends on every word of every
# translation. The learning rate is such that translations soon have an end.
BEFORE = f"""
{NO_DROPOUT}
import types
from chainer.functions.noise import dropout
dropout.dropout = chainer.functions.dropout
adam = chainer.optimizers.Adam.__init__
adam.__defaults__ = (0.03, *adam.__defaults__[1:])
def score(references, hypotheses, smoothing_function):
    assert len(references) == len(hypotheses)
    weights = 1 + numpy.arange(len(references))
    return sum(w * numpy.sin(1 + numpy.arange(len(h))) @ h
               for w, h in zip(weights, hypotheses) if h)
nltk = types.SimpleNamespace(
    corpus_bleu=score, SmoothingFunction=lambda: types.SimpleNamespace(method1=None))
sys.modules["nltk"] = types.ModuleType("nltk")
sys.modules["nltk.translate"] = types.SimpleNamespace(bleu_score=nltk)
bar = lambda: lambda lines, max_value: lines
sys.modules["progressbar"] = types.SimpleNamespace(ProgressBar=bar)
"""


def make_sentences(folder, n_train=50, n_validation=9):
    """Leaves sentences of 1 to 6 words, with their translations, and vocabularies.

    A translation has the same words in the other language, in the other order. A tenth
    of the words is not in the vocabularies.
    """
    rng = np.random.RandomState(0)
    folder.mkdir()
    for side, n_words in (("source", 11), ("target", 12)):
        words = "".join(f"{side[0]}{i}\n" for i in range(n_words))
        (folder / f"{side}_vocabulary").write_text(words)
    for part, n in (("train", n_train), ("validation", n_validation)):
        rows = [rng.randint(0, 12, rng.randint(1, 7)) for _ in range(n)]
        for side, step in (("source", 1), ("target", -1)):
            lines = [" ".join(f"{side[0]}{i}" for i in row[::step]) for row in rows]
            (folder / f"{part}_{side}").write_text("\n".join(lines) + "\n")


@needs_chainer
def test_it_gives_the_log_and_the_translations_of_the_original(tmp_path):
    data = tmp_path / "sentences"
    make_sentences(data)
    names = "train_source", "train_target", "source_vocabulary", "target_vocabulary"
    argv = [data / name for name in names]
    for side in ("source", "target"):
        argv += [f"--validation-{side}", data / f"validation_{side}"]
    # Of 50 sentences, minibatches have 10, and microbatches 3, 3, 2 and 2.
    argv += ["--batchsize", 10, "--unit", 8, "--layer", 2]
    argv += ["--log-interval", 1, "--validation-interval", 5]

    def run(n, folder, out, n_epochs, *more):
        arguments = [*argv, "--epoch", n_epochs, "--out", tmp_path / out, *more]
        printed = run_script(n, folder / "seq2seq.py", arguments, data, BEFORE)
        assert printed.count("main/loss   main/perp") == 1
        log = json.loads((tmp_path / out / "log").read_text())
        return log, re.findall(r"# (source|result|expect) : (.*)", printed)

    originals, ported = originals_and_ported(tmp_path)
    expected, translations = run(1, originals, "original", 3)
    assert len(expected) == 15 and len(translations) == 9
    assert [i for i in range(15) if "validation/main/bleu" in expected[i]] == [4, 9, 14]
    saved = tmp_path / "saved"
    log, translated = run(2, ported, "begun", 1, "--save", saved)
    assert_logs_equal(log, expected[:5])
    assert translated == translations[:3]
    for n, path in ((3, tmp_path / "begun" / "snapshot_epoch_5"), (1, saved)):
        log, translated = run(n, ported, f"resumed_on_{n}", 3, "--resume", path)
        assert_logs_equal(log, expected)
        assert translated == translations[3:]
