"""Warnings of ranks that start, by a pure function: no ranks are needed for that."""

import os

import chainer
import numpy as np

import chainer_kernels
from divisible import Divisible
from divisible.early_draws import EarlyDraws
from pipeline.start import agreement
from pipeline.start.agreement import agree
from pipeline.start.start_warnings import warnings_of
from tests.pipeline.start.test_agreement import line, pair, say


def warned(said):
    """Returns what each rank has to warn of, which agree with each other."""
    return warnings_of(said, agree(said).dtypes)


def test_equal_ranks_are_warned_of_nothing():
    model = line()
    said = [say(model, (2, 4)), say(model, (0, 1)), say(model, (1, 2))]
    assert warned(said) == [[], [], []]


def test_half_precision_without_a_loss_scale_is_warned_of_once():
    with chainer.using_config("dtype", np.float16):
        model = line()
    said = [say(model, (0, 2)), say(line(), (2, 4))]
    (text,), nothing = warned(said)
    assert "float16 parameters, but the pipeline no loss_scale" in text
    assert nothing == []
    said = [say(model, (0, 2), loss_scale=1), say(model, (2, 4), loss_scale=1)]
    assert warned(said) == [[], []]


def test_too_many_threads_are_warned_of_once_a_host():
    model = line()
    said = [say(model, (i, i + 1)) for i in range(4)]
    hosts = [("a", 2), ("b", 4), ("a", 2), ("b", 4)]
    said = [
        word._replace(host=host, n_threads=n_threads)
        for word, (host, n_threads) in zip(said, hosts)
    ]
    few, (text,), *others = warned(said)
    assert few == [] and others == [[], []]
    assert "2 ranks on b with 4 threads each share 4 cores" in text
    assert "OMP_NUM_THREADS=2" in text


def test_threads_of_other_libraries_count():
    class Layer(chainer.Link):
        library_threads = 100_000

    model = Divisible(Layer(), chainer.links.Linear(3, 3))
    words = [
        agreement.StartAnnouncement.of([model.divide(i, i + 1)], (), {}, True)
        for i in (0, 1)
    ]
    assert words[0].n_threads == 100_000
    assert words[1].n_threads < 100_000


def test_a_system_that_does_not_tell_which_cores_there_are(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert agreement._n_cores() == os.cpu_count()


def test_ranks_that_drew_other_weights_are_warned_of():
    first, second = pair(line())
    drawn = [EarlyDraws(("/a", "/b"), state) for state in (5, 6)]
    pairs = [(drawn[0], drawn[1]), (drawn[0], drawn[0]), (drawn[0], None)]
    told = []
    for mine, theirs in pairs:
        said = [first._replace(early_draws=mine), second._replace(early_draws=theirs)]
        told.append([len(texts) for texts in warned(said)])
    assert told == [[1, 0], [0, 0], [0, 0]]


def test_ranks_that_compute_by_other_kernels_are_warned_of():
    first, second = pair(line())
    assert warned([first, second]) == [[], []]
    texts = warned([first, second._replace(arithmetic="Chainer's own")])
    assert "rank 1 computes by Chainer's own, and rank 0 by" in texts[0][0]
    assert texts[1] == []
    with chainer_kernels.disabled():
        assert say(line(), (0, 4)).arithmetic == "Chainer's own"
