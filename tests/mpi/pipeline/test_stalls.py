"""Every wait that is in vain names the rank that is missing."""

import contextlib
import time

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan
from divisible.communication import wait_queries, waiting
from divisible.communication.collectives import all_gather
from mixed_precision import MixedPrecision
from pipeline import Pipeline, StallError, load_snapshot, save_snapshot
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import LOAD

N_RANKS = 3
# How long an answer may take, on an idle machine.
SECONDS = 2
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
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=60, **options)
    pipe.step(X, T)
    return pipe, optimizer


# Each returns what all ranks then do; the one that is late does nothing instead, or
# comes as far as a place where it is halted.


def agree(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.internals.ranks.agree(1)


def gather(comm, folder, is_late):
    pipe, _ = make(comm)
    return None if is_late else lambda: pipe.internals.gather(1, "save")


def gather_after_the_call(comm, folder, is_late):
    pipe, _ = make(comm)
    if is_late:
        pipe.internals.ranks.all_gather = halt
    return lambda: pipe.internals.gather(1, "save")


def start(comm, folder, is_late):
    pipe, _ = make(comm)
    stage = next(iter(pipe.stages.values()))
    return (
        None if is_late else lambda: Pipeline(stage, comm, n_microbatches=2, timeout=60)
    )


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
        pipe._pass.results.share = halt
    return lambda: pipe.step(X, T)


def reports(comm, folder, is_late):
    pipe, _ = make(comm, Reporting(), Reporting(), L.Linear(4, 3))
    pipe.step(X, T)
    if is_late:
        pipe.internals.ranks.all_gather = halt
    return lambda: pipe.step(X, T)


def ties(comm, folder, is_late):
    shared = L.Linear(4, 4)
    pipe, _ = make(comm, shared, shared, shared)
    if is_late:
        pipe.internals.ties.add_up = halt
    return lambda: pipe.step(X, T)


def hooks(comm, folder, is_late):
    pipe, optimizer = make(comm)
    if comm.rank == 0:
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
    pipe.global_hooks(optimizer)
    if is_late:
        pipe.internals.ranks.all_gather = halt
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
        pipe.internals.ranks.timeline = halt
    return pipe.timeline


def measured(comm, folder, is_late):
    pipe, _ = make(comm)

    def finish():
        pipe.internals.ranks.finish(pipe.internals.ranks.gather(np.zeros(1)))

    return None if is_late else finish


def told(comm, folder, is_late):
    pipe, _ = make(comm)
    values = np.zeros(1)
    return None if is_late else lambda: pipe.internals.ranks.tell(values, "a minibatch")


def sent(comm, folder, is_late):
    """Waits until what is too large for MPI's buffers is taken."""
    pipe, _ = make(comm)
    runner = pipe.internals.step.runner
    sender = runner._transport.sender(3000, 2)

    def send():
        if comm.rank == 1:
            sender.send(0, [(LARGE, None)])
            runner._transport.flush()

    return None if is_late else send


OTHERS = {0: (1, 2), 1: (0, 2), 2: (0, 1)}

FROM_0, FROM_1, FROM_2 = (f"for what rank {rank} sends, for" for rank in range(3))
CLOCK_0, CLOCK_1 = (f"for rank {rank} to tell its clock" for rank in range(2))
TIE = "the copies of /0/W"
THEN_0, THEN_1 = (f". Rank {rank} itself waits" for rank in range(2))

# Without which rank what the others say: those that stall, if not both.
CASES = [
    (agree, 1, "for rank 1 to call agree (ranks 0 and 2 are here)"),
    (agree, 0, "for rank 0 to call agree (ranks 1 and 2 are here)"),
    (gather, 2, "for rank 2 to call save (ranks 0 and 1 are here)"),
    (gather_after_the_call, 1, "for rank 1 to save (ranks 0 and 2 are here)"),
    (start, 1, "for rank 1 to start (ranks 0 and 2 are here)"),
    (step, 1, {0: f"{FROM_1} 0B0", 2: f"{FROM_1} 2F0"}),
    (step, 2, {0: f"{FROM_1} 0B0{THEN_1} {FROM_2} 1B0", 1: f"{FROM_2} 1B0"}),
    (evaluate, 0, {1: f"{FROM_0} 1F0", 2: f"{FROM_1} 2F0{THEN_1} {FROM_0} 1F0"}),
    (predict, 1, {0: "for rank 1 to call predict (", 2: f"{FROM_1} 2F0"}),
    (close, 1, "for rank 1 to call close (ranks 0 and 2 are here)"),
    (result, 2, "for rank 2 to tell the result"),
    (reports, 1, "for rank 1 to tell what layers reported (ranks 0 and 2 are here)"),
    (ties, 2, {0: f"{FROM_2} {TIE}", 1: f"{FROM_0} {TIE}{THEN_0} {FROM_2} {TIE}"}),
    (hooks, 1, "for rank 1 to say what they do (ranks 0 and 2 are here)"),
    (update, 1, "for rank 1 to update (ranks 0 and 2 are here)"),
    (first_update, 1, "for rank 1 to make the first update (ranks 0 and 2 are here)"),
    (mixed_update, 0, "for rank 0 to update (ranks 1 and 2 are here)"),
    (save, 1, "for rank 1 to call save (ranks 0 and 2 are here)"),
    (load, 2, "for rank 2 to call load (ranks 0 and 1 are here)"),
    (timeline, 1, "for rank 1 to call timeline (ranks 0 and 2 are here)"),
    (clocks, 1, {0: CLOCK_1, 2: f"{CLOCK_0}{THEN_0} {CLOCK_1}"}),
    (measured, 1, "for rank 1 to tell what they measured (ranks 0 and 2 are here)"),
    (told, 0, "for rank 0 to tell a minibatch"),
    (sent, 2, {1: "for rank 2 to take what was sent to it"}),
]


class Standstill:
    """Lets waits end when no rank gets on, instead of after a time.

    Each rank counts, where all see it, how often it has looked for what it waits for in
    vain, and how often it got on. Who has seen nobody get on while all have looked for
    long enough gives up. So a rank that gets no core delays the others, and is not
    taken for one that is missing.
    """

    LOOKS, SECONDS_BETWEEN_LOOKS = 100, 0.001
    SECONDS_TO_ANSWER = 0.05

    def __init__(self, comm, folder):
        self._rank = comm.rank
        path = f"{folder}/looks"
        if comm.rank == 0:
            np.zeros((2, N_RANKS), int).tofile(path)
        comm.Barrier()
        self._looks, self._steps = np.memmap(path, int, "r+", shape=(2, N_RANKS))
        self._next_look = 0.0

    def get_on(self):
        self._steps[self._rank] += 1

    def look(self):
        """Counts that this rank has looked in vain."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self.SECONDS_BETWEEN_LOOKS
            self._looks[self._rank] += 1

    def come_together(self, comm):
        """Waits for all without taking part in anything else."""
        self.get_on()
        request = comm.Ibarrier()
        while not request.Test():
            self.look()
            time.sleep(self.SECONDS_BETWEEN_LOOKS)

    @contextlib.contextmanager
    def ends_waits(self, stalled):
        """Ends waits at a standstill; asks until those that stall have answered."""
        poll, ask = waiting._poll, wait_queries.WaitQueries.ask

        def poll_to_standstill(test, timeout, *others):
            steps, looks = self._steps.copy(), self._looks.copy()

            def looked_for():
                nonlocal steps, looks
                found = test()
                if found:
                    self.get_on()
                    return found
                self.look()
                if (self._steps != steps).any():
                    steps, looks = self._steps.copy(), self._looks.copy()
                return (self._looks - looks).min() > self.LOOKS and self

            found = poll(looked_for, timeout, *others)
            return poll(test, 0.0, *others) if found is self else found

        def ask_again(asking, *question):
            said, deadline = {}, time.monotonic() + LOAD * SECONDS
            while True:
                said.update(ask(asking, *question))
                if stalled - {self._rank} <= said.keys() or time.monotonic() > deadline:
                    return said

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiting, "_poll", poll_to_standstill)
            patch.setattr(wait_queries.WaitQueries, "ask", ask_again)
            patch.setattr(wait_queries, "_SECONDS_TO_ANSWER", self.SECONDS_TO_ANSWER)
            yield


def stalls(comm, folder, cases):
    standstill = Standstill(comm, folder)
    for case, late, words in [CASES[i] for i in cases]:
        words = words if isinstance(words, dict) else dict.fromkeys(OTHERS[late], words)
        ours = comm.Dup()
        call = case(ours, folder, comm.rank == late)
        standstill.come_together(comm)
        said = ""
        with standstill.ends_waits(words.keys()):
            try:
                (call or halt)()
            except (Halt, StallError) as error:
                said = str(error)
            standstill.come_together(comm)
        everyone = all_gather(comm, said, 60)
        name = f"{case.__name__} without rank {late}: {everyone}"
        assert {rank for rank, each in enumerate(everyone) if each} == {*words}, name
        for rank, what in words.items():
            assert what in everyone[rank], (what, name)
            assert f"Rank {late} does not answer" in everyone[rank], name


ALL = range(len(CASES))
# One of each way to wait.
SOME = [i for i in ALL if CASES[i][0] in (start, step, reports, ties, update, save)]


@pytest.mark.parametrize("cases", [SOME, pytest.param(ALL, marks=pytest.mark.matrix)])
def test_who_waits_names_who_is_missing(cases, tmp_path):
    assert_on_ranks(N_RANKS, stalls, str(tmp_path), list(cases), timeout=120)
