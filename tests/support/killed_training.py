"""Training runs that are killed at random moments, and started again.

Each test of such runs has a function ``train(comm, out)`` of its own, which makes a
trainer and passes it to :func:`finish`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any, Callable

from chainer.training import Trainer, make_extension

from pipeline import (
    Snapshot,
    StopOnSignal,
    latest_snapshot,
    snapshot,
)
from tests.support.loaded_python import loaded_project
from tests.support.mpiexec import worker
from tests.support.processes import Running, launcher, running
from tests.support.snapshot_training import saved_arrays

N_ITERATIONS = 60
RANKS = (1, 2, 3)
SECONDS_TO_START, SECONDS_TO_END = 60, 30


def finish(comm: Any, trainer: Trainer) -> None:
    """Trains until the end, from the newest snapshot there is.

    Args:
        comm: The ranks.
        trainer: A trainer that stops after `N_ITERATIONS`.
    """
    every = {"trigger": (1, "iteration")}
    # One that is written in the background is known to be there at the next.
    later = comm.size > 1
    trainer.extend(snapshot(resume="auto", n_retains=2, background=later), **every)
    if comm.rank == 0:
        trainer.extend(said_later if later else said, **every)
    if comm.size % 2:
        # Told to stop, some save and end, and others end as they are.
        trainer.extend(StopOnSignal(signals=[signal.SIGTERM]))
    print(f"rank {comm.rank} trains in process {os.getpid()}", flush=True)
    trainer.run()


@make_extension(priority=-200)
def said(trainer):
    """Says what is saved by now."""
    print(f"saved {trainer.updater.iteration}", flush=True)


@make_extension(priority=-200)
def said_later(trainer):
    """Says what is saved by now in the background."""
    print(f"saved {trainer.updater.iteration - 1}", flush=True)


class Training:
    """A training run that is started as often as it takes.

    Args:
        train: Called with ``comm, out``; a function of a module.
        out: Where its snapshots are.

    Attributes:
        n_saved (int): How many minibatches are known to be saved.
        log (list of str): What was done to it.
    """

    def __init__(self, train: Callable, out: Path) -> None:
        self._train, self.out = train, out
        self.n_saved = 0
        self.log: list[str] = []

    def run(self, n: int, kill: Callable[[Running, list[int]], str]) -> float:
        """Starts it on some ranks, and waits until it has ended.

        Args:
            n: How many ranks.
            kill: Called when all of them train, with the program and the ids of their
                processes. Returns what it has done, in words.

        Returns:
            How many seconds it trained.
        """
        command = [launcher(), "-n", str(n), *loaded_project()]
        with running([*command, *worker(self._train, str(self.out))]) as program:

            def pids() -> list[int]:
                found = re.findall(r"trains in process (\d+)", program.output)
                return list(map(int, found)) if len(found) == n else []

            processes = program.wait_for(pids, SECONDS_TO_START)
            begin = time.monotonic()
            what = kill(program, processes)
            code = program.wait(SECONDS_TO_END)
            seconds, output = time.monotonic() - begin, program.output
        said_to_be_saved = map(int, re.findall(r"saved (\d+)\n", output))
        expected = max(self.n_saved, *said_to_be_saved, 0)
        self.n_saved = self._look()
        self.log.append(f"{n} ranks, {what}, exit code {code}, {self.n_saved} saved")
        print(f"{self.out.name}: {self.log[-1]}", flush=True)
        words = "\n".join([*self.log, f"{expected} were saved", output])
        assert self.n_saved >= expected, words
        assert "Traceback" not in output, words
        assert code != 0 or self.is_done or "SIGTERM" in what, words
        return seconds

    def _look(self) -> int:
        path = latest_snapshot(self.out)
        return 0 if path is None else Snapshot.open(path).n_steps

    @property
    def is_done(self) -> bool:
        return self.n_saved == N_ITERATIONS

    def result(self) -> dict[str, bytes]:
        """Returns all that was trained, by key."""
        arrays = saved_arrays(latest_snapshot(self.out))
        return {key: array.tobytes() for key, array in arrays.items()}


def at_random(chance: random.Random, seconds: float) -> Callable:
    """Returns what kills a program, or a part of it, within so many seconds."""
    after = chance.uniform(0, seconds)
    name, number, who = chance.choice(
        [
            ("SIGKILL", signal.SIGKILL, "a rank"),
            ("SIGTERM", signal.SIGTERM, "a rank"),
            ("SIGKILL", signal.SIGKILL, "all ranks"),
            ("SIGKILL", signal.SIGKILL, "mpiexec"),
            ("SIGTERM", signal.SIGTERM, "mpiexec"),
        ]
    )
    which = chance.random()

    def kill(program: Running, ranks: list[int]) -> str:
        time.sleep(after)
        one = ranks[int(which * len(ranks))]
        everyone = {"a rank": [one], "all ranks": ranks}
        if program.process.poll() is None:
            for pid in everyone.get(who, [program.process.pid]):
                # It may have ended by itself.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return f"{name} to {who} after {after:.2f} s"

    return kill


def check_kills(train: Callable, folder: Path, n_kills: int) -> None:
    """Kills a training run so often, and compares its end with that of another one.

    ``SEED=`` in the environment repeats what a failure has printed.

    Args:
        train: Called with ``comm, out``; a function of a module.
        folder: Folder for the snapshots.
        n_kills: Number of kills. A run that comes to its end is followed by another.
    """
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed} KILLS={n_kills}")
    chance = random.Random(seed)
    undisturbed = Training(train, folder / "undisturbed")
    seconds = undisturbed.run(2, left_alone)
    expected = undisturbed.result()
    training, n_done, n_killed = Training(train, folder / "0"), 0, 0
    while n_killed < n_kills or not training.is_done:
        if training.is_done:
            assert training.result() == expected, "\n".join(training.log)
            n_done += 1
            training = Training(train, folder / str(n_done))
        kill = at_random(chance, seconds / 2)
        if n_killed == n_kills:
            kill = left_alone
        training.run(chance.choice(RANKS), kill)
        n_killed += not training.is_done
    assert training.result() == expected, "\n".join(training.log)
    print(f"{n_killed} kills, {n_done + 1} trainings ended as one without kills")


def left_alone(*_: Any) -> str:
    return "left alone"
