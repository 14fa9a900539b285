"""Ranks write their states, and rank 0 finds the slow one."""

import sys
import time
from pathlib import Path

import chainer
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

from divisible import Divisible
from pipeline import Pipeline, PipelineUpdater, ProgressLine, RunStatus, snapshot
from pipeline.watching.run_view import RunWatch
from pipeline.watching.slow_links import LinkTimes
from pipeline.watching.status_files import read_statuses
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import LOAD, launcher
from tests.support.terminal import printed_to_a_terminal, screen

SAMPLES = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(24)]
#: What a layer sleeps in a forward, usually and on the slow rank.
USUAL, SLOW = 0.002, 0.02
#: After so many slow minibatches the rank has been found, or does not stand out.
UNTIL_FOUND = 30


class Sleeping(chainer.Link):
    """A layer whose forward takes a while, in which its rank computes nothing."""

    seconds = USUAL

    def forward(self, x):
        time.sleep(self.seconds)
        return x


def train_with_a_slow_rank(comm, out):
    layers = [each for _ in range(comm.size) for each in (L.Linear(4, 4), Sleeping())]
    pipe = Pipeline(Divisible(*layers), comm, n_microbatches=2, timeout=60)
    optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
    (stage,) = pipe.stages.values()
    x, t = np.ones((8, 4), np.float32), np.zeros(8, np.int32)
    deadline = time.monotonic() + 60 * LOAD
    with RunStatus(pipe, out, line=False) as status:
        # No message was sent yet.
        status.note(epoch=0)
    with RunStatus(pipe, out, line=False) as status:
        n_slow, found = 0, []
        while not found:
            assert time.monotonic() < deadline
            result = pipe.step(x, t)
            optimizer.update()
            status.note(result, epoch=pipe.n_steps / 100)
            if pipe.n_steps == 1:
                comm.Barrier()
                check_links(read_statuses(Path(out, "ranks")).ranks)
            n_slow += pipe.n_steps > 60
            # On a busy machine usual times scatter more widely than this, and become
            # slow ones before the rank is found. It is then made slower still.
            if n_slow % UNTIL_FOUND == 1 and comm.rank == 1:
                stage[-1].seconds = SLOW * 4 ** (n_slow // UNTIL_FOUND)
            # The newest times are then all slow. A busy machine may let a rank be slow
            # before, too.
            if n_slow > 15:
                ranks = read_statuses(Path(out, "ranks")).ranks
                # All ranks end together.
                found = comm.bcast([s for s in ranks[0].slow if s[:6] == "rank 1"])
    assert " computes " in found[0]
    pipe.close()


def check_links(ranks):
    """Checks that both ends of each link have told the times of the same messages."""
    links = LinkTimes()
    links.add(ranks)
    assert links._seconds.keys() == {(0, 1), (1, 0), (1, 2), (2, 1)}
    # Messages between processes of one host, which have one clock.
    longest = max(seconds[0] for seconds in links._seconds.values())
    shortest = min(seconds[0] for seconds in links._seconds.values())
    assert -0.01 < shortest <= longest < 60 * LOAD


def test_a_rank_that_becomes_slow_is_named(tmp_path):
    output = assert_on_ranks(3, train_with_a_slow_rank, str(tmp_path), timeout=90)
    assert "\033" not in output
    view = RunWatch(tmp_path).look()
    assert view.has_ended
    assert [each.rank for each in view.ranks] == [0, 1, 2]
    assert {each.n_steps for each in view.ranks} == {view.chief.n_steps}
    assert [each.stages for each in view.ranks] == [
        {str(rank): [2 * rank, 2 * rank + 2]} for rank in range(3)
    ]
    assert set(view.chief.values) == {"loss", "accuracy"}
    now = view.ranks[1].now
    assert now.computing > 2 * SLOW
    assert view.ranks[2].now.waiting > 0
    texts = [event.text for event in view.events]
    assert any(
        "rank 1 on" in text and "times as long as usual" in text for text in texts
    )
    assert texts[-1].endswith("ends: finished")


def train_by_trainer(comm, out):
    model = Divisible(L.Linear(4, 5), L.Linear(5, 3))
    pipe = Pipeline(model, comm, n_microbatches=2, timeout=60)
    optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
    for n_epochs in (2, 3):
        iterator = chainer.iterators.SerialIterator(SAMPLES, 8, shuffle=False)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        trainer = training.Trainer(updater, (n_epochs, "epoch"), out=out)
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(snapshot(resume="auto"))
        trainer.extend(ProgressLine(line=False))
        trainer.run()
        log = trainer.get_extension("LogReport").log
        mine = read_statuses(Path(out, "ranks")).ranks[comm.rank]
        assert mine.values["main/loss"] == log[-1]["main/loss"]
        assert (mine.epoch, mine.share) == (n_epochs, 1.0)
        comm.Barrier()
    # An error of the script is the reason of the end.
    iterator = chainer.iterators.SerialIterator(SAMPLES, 8)
    trainer = training.Trainer(
        PipelineUpdater(iterator, optimizer, pipe), (4, "epoch"), out=out
    )
    trainer.extend(ProgressLine(line=False))
    trainer.extend(fail, trigger=(2, "iteration"))
    try:
        trainer.run()
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("no error")


def fail(trainer):
    raise ZeroDivisionError("as planned")


def test_a_trainer_leaves_the_events_of_a_run(tmp_path):
    assert_on_ranks(2, train_by_trainer, str(tmp_path))
    view = RunWatch(tmp_path).look()
    assert view.chief.state == "ZeroDivisionError: as planned"
    events = sorted((event.time, event.kind, event.text) for event in view.events)
    kinds = [kind for _, kind, _ in events if kind != "slow"]
    assert kinds == [
        *("start", "snapshot", "snapshot", "end"),
        *("start", "snapshot", "end", "start", "end"),
    ]
    begins = [text for _, kind, text in events if kind == "start"]
    # The second start has resumed the first one.
    assert [text.startswith("step 6: ") for text in begins] == [False, True, False]
    assert begins[0].startswith("begins: 2 layers in 2 stages on 2 ranks")


SCRIPT = """
import sys, warnings
import chainer, numpy as np
from mpi4py import MPI
from tests.mpi.pipeline.watching.test_run_status import SAMPLES, L, Divisible
from chainer.training import extensions
from pipeline import Pipeline, PipelineUpdater, ProgressLine
comm = MPI.COMM_WORLD
model = Divisible(L.Linear(4, 5), L.Linear(5, 3))
pipe = Pipeline(model, comm, n_microbatches=2, timeout=60)
optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
iterator = chainer.iterators.SerialIterator(SAMPLES, 8)
updater = PipelineUpdater(iterator, optimizer, pipe)
trainer = chainer.training.Trainer(updater, (2, "epoch"), out=sys.argv[1])
trainer.extend(extensions.LogReport())
trainer.extend(extensions.PrintReport(["epoch", "iteration"]))
trainer.extend(ProgressLine())
def speak(trainer):
    if comm.rank == 0:
        print("spoken")
trainer.extend(speak, trigger=(1, "epoch"))
trainer.run()
"""


def test_the_line_is_shown_where_mpiexec_prints_to_a_terminal(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    printed = printed_to_a_terminal([launcher(), "-n", "2", *command])
    assert "\033[Jepoch 0.33, step 1, " in printed
    # The lines of others are whole, and nothing is left of this one.
    assert [line.split() for line in screen(printed)] == [
        *(["epoch", "iteration"], ["1", "3"], ["spoken"], ["2", "6"], ["spoken"], []),
    ]
