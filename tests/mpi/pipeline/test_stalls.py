"""Every wait that is in vain names the rank that is missing."""

import contextlib
import time

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan
from divisible.communication import roll_call, waiting
from divisible.communication.collectives import all_gather
from mixed_precision import MixedPrecision
from pipeline import Pipeline, StallError, load_snapshot, save_snapshot
from tests.support.mpiexec import assert_on_ranks

N_RANKS = 3
X, T = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
LARGE = np.ones((6, 1 << 18), np.float32)


class Halt(BaseException):
    """The rank does something else from here on."""


def halt(*arguments, **options):
    raise Halt


class Reporting(chainer.Link):
    def forward(self, x):
        chainer.report({"mean": chainer.as_array(x).mean()}, self)
        return x


def make(comm, *layers, **options):
    """Returns a pipeline that has made a step, and its optimizer."""
    layers = layers or [L.Linear(4, 4), L.Linear(4, 4), L.Linear(4, 3)]
    stage = Divisible(*layers).divide(
        *Plan.uniform(len(layers), N_RANKS).range(comm.rank)
    )
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    if options.pop("clips", False):
        hook = chainer.optimizer_hooks.GradientClipping(1.0)
        optimizer.add_hook(hook)
    if options.pop("is_mixed", False):
        rule = chainer.optimizers.SGD(0.1)
        optimizer = MixedPrecision(rule, comm=comm, timeout=60).setup(stage)
        options["loss_scale"] = optimizer.loss_scale
    pipe = Pipeline(stage, comm, 2, timeout=60, **options)
    pipe.step(X, T)
    return pipe, optimizer


# Each returns what all ranks then do; those that are late do nothing instead, or come
# as far as a place where they are halted. Then comes what the others must say.


def agree(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.ranks.agree(1)


def gather(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.gather(1, "save")


def gather_after_the_call(comm, folder, is_late):
    pipe, _ = make(comm)
    if is_late:
        pipe.ranks.all_gather = halt
    return lambda: pipe.gather(1, "save")


def start(comm, folder, is_late):
    pipe, _ = make(comm)
    stage = next(iter(pipe.stages.values()))
    return None if is_late else lambda: Pipeline(stage, comm, 2, timeout=60)


def step(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.step(X, T)


def evaluate(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.evaluate(X, T)


def predict(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.predict(X)


def close(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else pipe.close


def result(comm, folder, is_late):
    pipe, _ = make(comm)
    if is_late:
        pipe._results.share = halt
    return lambda: pipe.step(X, T)


def reports(comm, folder, is_late):
    pipe, _ = make(comm, Reporting(), Reporting(), L.Linear(4, 3))
    pipe.step(X, T)
    if is_late:
        pipe.ranks.all_gather = halt
    return lambda: pipe.step(X, T)


def ties(comm, folder, is_late):
    shared = L.Linear(4, 4)
    pipe, _ = make(comm, shared, shared, shared)
    if is_late:
        pipe._ties.add_up = halt
    return lambda: pipe.step(X, T)


def hooks(comm, folder, is_late):
    pipe, optimizer = make(comm)
    if comm.rank == 0:
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
    pipe.global_hooks(optimizer)
    if is_late:
        pipe.ranks.all_gather = halt
    return lambda: pipe.step(X, T)


def update(comm, folder, is_late):
    pipe, optimizer = make(comm, clips=True)
    pipe.global_hooks(optimizer)
    pipe.step(X, T)
    optimizer.update()
    pipe.step(X, T)
    return None if is_late else optimizer.update


def first_update(comm, folder, is_late):
    pipe, optimizer = make(comm, clips=True)
    pipe.global_hooks(optimizer)
    pipe.step(X, T)
    return None if is_late else optimizer.update


def mixed_update(comm, folder, is_late):
    _, optimizer = make(comm, is_mixed=True)
    optimizer.update()
    return None if is_late else optimizer.update


def save(comm, folder, is_late):
    pipe, optimizer = make(comm)
    path = f"{folder}/{comm.py2f()}"
    return None if is_late else lambda: save_snapshot(path, pipe, optimizer)


def load(comm, folder, is_late):
    pipe, optimizer = make(comm)
    save_snapshot(f"{folder}/whole", pipe, optimizer)
    whole = f"{folder}/whole"
    return None if is_late else lambda: load_snapshot(whole, pipe, optimizer)


def timeline(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else pipe.timeline


def clocks(comm, folder, is_late):
    pipe, _ = make(comm)
    if is_late:
        pipe.ranks.clock_offset = halt
    return pipe.timeline


def measured(comm, folder, is_late):
    pipe, _ = make(comm)

    def finish():
        pipe.ranks.finish(pipe.ranks.gather(np.zeros(1)))

    return None if is_late else finish


def told(comm, folder, is_late):
    pipe, _ = make(comm)
    values = np.zeros(1)
    return None if is_late else lambda: pipe.ranks.tell(values, "a minibatch")


def sent(comm, folder, is_late):
    """What is too large for MPI's buffers waits until it is taken."""
    pipe, _ = make(comm)
    runner = pipe._runner
    sender = runner._transport.sender(3000, 2)

    def send():
        if comm.rank == 1:
            sender.send(0, [(LARGE, None)])
            runner._transport.flush()

    return None if is_late else send


CASES = [
    (agree, 1, "for rank 1 to call agree (ranks 0 and 2 are here)"),
    (agree, 0, "for rank 0 to call agree (ranks 1 and 2 are here)"),
    (gather, 2, "for rank 2 to call save (ranks 0 and 1 are here)"),
    (gather_after_the_call, 1, "for rank 1 to save (ranks 0 and 2 are here)"),
    (start, 1, "for rank 1 to start (ranks 0 and 2 are here)"),
    (step, 1, "for what rank 1 sends, for "),
    (step, 2, "for what rank 2 sends, for 1B0"),
    (evaluate, 0, "for what rank 0 sends, for 1F0"),
    (predict, 1, "for what rank 1 sends, for 2F0"),
    (close, 1, "for rank 1 to call close (ranks 0 and 2 are here)"),
    (result, 2, "for rank 2 to tell the result"),
    (reports, 1, "for rank 1 to tell what layers reported (ranks 0 and 2 are here)"),
    (ties, 2, "for what rank 2 sends, for the copies of /0/"),
    (hooks, 1, "for rank 1 to say what they do (ranks 0 and 2 are here)"),
    (update, 1, "for rank 1 to update (ranks 0 and 2 are here)"),
    (first_update, 1, "for rank 1 to make the first update (ranks 0 and 2 are here)"),
    (mixed_update, 0, "for rank 0 to update (ranks 1 and 2 are here)"),
    (save, 1, "for rank 1 to call save (ranks 0 and 2 are here)"),
    (load, 2, "for rank 2 to call load (ranks 0 and 1 are here)"),
    (timeline, 1, "for rank 1 to call timeline (ranks 0 and 2 are here)"),
    (clocks, 1, "for rank 1 to tell its clock"),
    (measured, 1, "for rank 1 to tell what they measured (ranks 0 and 2 are here)"),
    (told, 0, "for rank 0 to tell a minibatch"),
    (sent, 2, "for rank 2 to take what was sent to it"),
]


@contextlib.contextmanager
def patience(seconds):
    """Shortens all waits, but those for an answer."""
    poll, answers = waiting._poll, roll_call._SECONDS_TO_ANSWER

    def impatient(test, timeout, *others):
        return poll(test, min(seconds, timeout), *others)

    waiting._poll, roll_call._SECONDS_TO_ANSWER = impatient, 0.15
    try:
        yield
    finally:
        waiting._poll, roll_call._SECONDS_TO_ANSWER = poll, answers


def come_together(comm):
    """Waits for all without taking part in anything else."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def stalls(comm, folder, cases):
    for case, late, words in [CASES[i] for i in cases]:
        ours = comm.Dup()
        call = case(ours, folder, comm.rank == late)
        come_together(comm)
        said = ""
        if comm.rank == late:
            with contextlib.suppress(Halt):
                (call or halt)()
        else:
            with patience(0.25), contextlib.suppress(StallError):
                try:
                    call()
                except StallError as error:
                    said = str(error)
                    raise
        come_together(comm)
        name = f"{case.__name__} without rank {late}: {said or 'nothing'}"
        everyone = all_gather(comm, said, 60)
        if comm.rank == 0:
            print(name, everyone, sep="\n")
            assert any(words in each for each in everyone), (words, everyone)
        if said:
            assert f"Rank {late} does not answer" in said, name


ALL = range(len(CASES))
# One of each way to wait.
SOME = [i for i in ALL if CASES[i][0] in (start, step, reports, ties, update, save)]


@pytest.mark.parametrize("cases", [SOME, pytest.param(ALL, marks=pytest.mark.matrix)])
def test_who_waits_names_who_is_missing(cases, tmp_path):
    assert_on_ranks(N_RANKS, stalls, str(tmp_path), list(cases), timeout=120)
