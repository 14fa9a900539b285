"""Runs with copies in memory lose ranks and hosts, and end as one without losses.

``make test-kills KILLS=200``; ``SEED=`` repeats what a failure has printed, as far as
signals at the same moment do the same. A host is a folder in memory, which is wiped
when the host is lost.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from chainer.training import make_extension

from divisible import Plan
from pipeline import Snapshot, latest_snapshot, memory_copies, rebalance, snapshot
from tests.support.fault_injection import folder_in_memory
from tests.support.loaded_python import loaded_project
from tests.support.mpiexec import worker
from tests.support.processes import Running, launcher, running
from tests.support.snapshot_training import saved_arrays, small_model, small_trainer

N_ITERATIONS, EVERY_ON_DISK, EVERY_MOVE = 40, 10, 3
SECONDS_TO_START, SECONDS_TO_END = 60, 30
#: Copies that a start has made when a host is lost. Before that, the loss is one of
#: two: the copies of the start before are not on new partners yet.
N_COPIES = 3
#: Most copies that a start makes before it is killed, and most seconds after them. A
#: start, a resume and a copy take parts of a second, on an idle machine.
MOST_COPIES, MOST_SECONDS = 12, 0.4


def memory_of(folder, host):
    return Path(folder, f"host{host}")


def train(comm, out, memory, hosts):
    """Trains until the end, from the newest state in memory and on disk."""
    trainer, _ = small_trainer(comm, out, (N_ITERATIONS, "iteration"))
    place = memory_of(memory, hosts[comm.rank])
    place.mkdir(parents=True, exist_ok=True)
    trainer.extend(memory_copies(directory=place))
    disk = snapshot(resume="auto", n_retains=2, background=True)
    trainer.extend(disk, trigger=(EVERY_ON_DISK, "iteration"))
    trainer.extend(move_layers, trigger=(EVERY_MOVE, "iteration"))
    if comm.rank == 0:
        trainer.extend(say_copied, trigger=(1, "iteration"))
    print(f"rank {comm.rank} trains in process {os.getpid()}", flush=True)
    trainer.run()


@make_extension(priority=500)
def move_layers(trainer):
    """Moves layers to and fro, while the last copy may be under way."""
    updater = trainer.updater
    pipe, n_layers = updater.pipeline, len(small_model())
    n = pipe.plan.n_stages
    even = Plan.uniform(n_layers, n).cuts
    cuts = [*range(n), n_layers] if [*pipe.plan.cuts] == even else even
    rebalance(pipe, updater.get_optimizer("main"), cuts, small_model)


@make_extension(priority=-200)
def say_copied(trainer):
    """Says what is in memory by now."""
    print(f"copied {trainer.updater.iteration}", flush=True)


class Loss(NamedTuple):
    """What was done to a start of a run.

    Attributes:
        words: The same in words.
        hosts: Hosts that were lost.
    """

    words: str
    hosts: tuple[int, ...] = ()


class Training:
    """A training run that is started as often as it takes.

    Attributes:
        hosts: Hosts that the next start has, one for each rank.
        least: Iteration from which the next start must go on, or a later one.
        n_from_disk: Number of starts that went on from a snapshot on disk.
        is_done: Whether the last start has ended by itself.
        log: What was done to it.
    """

    def __init__(self, folder: Path, n_hosts: int) -> None:
        self.out, self.memory = folder / "out", folder / "memory"
        self.hosts = list(range(n_hosts))
        self._n_hosts = n_hosts
        self.least = self.n_from_disk = 0
        self.is_done = False
        self.log: list[str] = []

    def run(self, chance: random.Random, is_killed: bool) -> None:
        """Starts it on its hosts, and waits until it has ended.

        Args:
            chance: Chooses what is killed, and when.
            is_killed: Whether something is killed.
        """
        arguments = str(self.out), str(self.memory), self.hosts
        n = len(self.hosts)
        command = [launcher(), "-n", str(n), *loaded_project()]
        loss = Loss("left alone")
        with running([*command, *worker(train, *arguments)]) as program:

            def pids() -> dict[int, int]:
                said = r"rank (\d+) trains in process (\d+)"
                found = re.findall(said, program.output)
                return {int(r): int(p) for r, p in found} if len(found) == n else {}

            processes = program.wait_for(pids, SECONDS_TO_START)
            if is_killed:
                self._await_moment(chance, program)
                loss = self._kill(chance, program, processes)
            code = program.wait(SECONDS_TO_END)
            output = program.output
        self._note(loss, code, output)
        self._choose_hosts(chance, loss)

    def _await_moment(self, chance: random.Random, program: Running) -> None:
        """Waits for a random moment of the start, the resume or the training."""
        n_copies = chance.randint(0, MOST_COPIES)

        def has_come() -> bool:
            has_ended = program.process.poll() is not None
            return has_ended or program.output.count("copied") >= n_copies

        program.wait_for(has_come, SECONDS_TO_START)
        time.sleep(chance.uniform(0, MOST_SECONDS))

    def _kill(
        self, chance: random.Random, program: Running, ranks: dict[int, int]
    ) -> Loss:
        """Kills a rank, all ranks, the launcher, a host, or a host and its partner."""
        what = chance.choice(["rank", "ranks", "mpiexec", "host", "host", "partners"])
        first = chance.randrange(len(ranks))
        if program.process.poll() is not None:
            return Loss("came too late")
        is_early = program.output.count("copied") < N_COPIES
        lost = {
            "host": [first],
            "partners": [first, (first + 1) % len(ranks)],
        }.get(what, [])
        if is_early and what == "host":
            what, lost = "rank", []
        killed = {
            "ranks": list(ranks.values()),
            "mpiexec": [program.process.pid],
        }.get(what, [ranks[rank] for rank in lost or [first]])
        for pid in killed:
            # It may have ended by itself.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return Loss(f"{what} {first} killed", tuple(self.hosts[each] for each in lost))

    def _note(self, loss: Loss, code: int, output: str) -> None:
        resumed = re.findall(r"resumed from (.+): iteration (\d+), saved", output)
        copied = [int(each) for each in re.findall(r"copied (\d+)\n", output)]
        from_disk = sum("memory" not in where for where, _ in resumed)
        begun = int(resumed[-1][1]) if resumed else 0
        self.log.append(
            f"{self.hosts}: from {begun}{' on disk' * from_disk}, must be {self.least},"
            f" copied {copied[-1:]}, {loss.words}, lost {loss.hosts}, exit code {code}"
        )
        print(self.log[-1], flush=True)
        words = "\n".join([*self.log, output])
        assert "Traceback" not in output, words
        assert code != 0 or self._on_disk() == N_ITERATIONS, words
        # Killed after its last snapshot, it has not removed its copies yet.
        self.is_done = code == 0
        # Killed before it has resumed, it has changed nothing.
        if resumed or copied:
            assert begun >= self.least, words
            self.n_from_disk += from_disk
            self.least = max([begun, *copied])
        if len(loss.hosts) == 1:
            self.least -= 1
        if len(loss.hosts) == 2:
            self.least = self._on_disk()
        for host in loss.hosts:
            shutil.rmtree(memory_of(self.memory, host), ignore_errors=True)

    def _choose_hosts(self, chance: random.Random, loss: Loss) -> None:
        """Goes on with what is left, or with new hosts in place of lost ones."""
        left = [host for host in self.hosts if host not in loss.hosts]
        if chance.random() < 0.5 or not left:
            while len(left) < len(self.hosts):
                left.append(self._n_hosts)
                self._n_hosts += 1
        self.hosts = left if len(left) > 1 else [*left, self._new_host()]
        chance.shuffle(self.hosts)

    def _new_host(self) -> int:
        self._n_hosts += 1
        return self._n_hosts - 1

    def _on_disk(self) -> int:
        path = latest_snapshot(self.out)
        return 0 if path is None else Snapshot.open(path).n_steps

    def result(self) -> dict[str, bytes]:
        """Returns all that was trained, by key."""
        arrays = saved_arrays(latest_snapshot(self.out))
        return {key: array.tobytes() for key, array in arrays.items()}

    def left_over(self) -> list[Path]:
        """Returns what is left in the memory of hosts."""
        return [each for host in self.memory.iterdir() for each in host.iterdir()]


@pytest.mark.parametrize("n_kills", [2, pytest.param(0, marks=pytest.mark.matrix)])
@pytest.mark.filterwarnings("ignore:a snapshot is passed over")
def test_lost_ranks_and_hosts(tmp_path, n_kills):
    n_kills = n_kills or int(os.environ.get("KILLS") or 5)
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed} KILLS={n_kills}")
    chance = random.Random(seed)
    with folder_in_memory() as folder:
        undisturbed = Training(folder / "undisturbed", 3)
        undisturbed.run(chance, is_killed=False)
        assert undisturbed.is_done and undisturbed.left_over() == []
        expected, n_killed, n_done, n_from_disk = undisturbed.result(), 0, 0, 0
        training = Training(folder / "0", 3)
        while n_killed < n_kills or not training.is_done:
            if training.is_done:
                check(training, expected)
                n_done, n_from_disk = n_done + 1, n_from_disk + training.n_from_disk
                training = Training(folder / str(n_done), chance.choice([3, 4]))
            training.run(chance, is_killed=n_killed < n_kills)
            n_killed += not training.is_done
        check(training, expected)
    n_from_disk += training.n_from_disk
    print(f"{n_killed} kills, {n_done + 1} runs, {n_from_disk} times from the disk")


def check(training, expected):
    assert training.result() == expected, "\n".join(training.log)
    assert training.left_over() == [], "\n".join(training.log)
