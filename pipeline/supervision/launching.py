"""The commands that start ranks on certain hosts, by the launchers that are known.

::

    mpiexec of MPICH, Intel     mpiexec -hosts a:2,b:2 -n 4 python ...
    mpiexec of Open MPI         mpiexec -host a:2,b:2 -n 4 python ...
    srun                        srun --distribution=arbitrary --nodelist=a,a,b,b ...
    another                     where its command has {hosts}
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.supervision.hosts import Host

# Marks in the command of a launcher.
_HOSTS, _NAMES = "{hosts}", "{names}"
_SECONDS_FOR_VERSION = 10.0
#: Seconds in which a host must run a command that does nothing.
SECONDS_TO_ANSWER = 15.0


class Placement(NamedTuple):
    """The hosts of the ranks of one start, in the order of the ranks.

    Attributes:
        hosts: Each host, with the number of ranks that it runs.
    """

    hosts: tuple[Host, ...]

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return sum(host.slots for host in self.hosts)

    @property
    def is_free(self) -> bool:
        """Whether the launcher chooses the hosts."""
        return self.hosts[0].name == ""

    def host_of(self, rank: int) -> str:
        """Returns the name of a rank's host.

        Example:
            >>> Placement((Host("a", 2), Host("b", 1))).host_of(2)
            'b'
        """
        for host in self.hosts:
            if rank < host.slots:
                return host.name
            rank -= host.slots
        return self.hosts[-1].name

    def __str__(self) -> str:
        """Returns the number of ranks, and the hosts if they are known."""
        ranks = f"{self.n_ranks} rank{'' if self.n_ranks == 1 else 's'}"
        return ranks if self.is_free else f"{ranks} ({', '.join(map(str, self.hosts))})"


@dataclass(frozen=True)
class Job:
    """A launcher and the program that it starts.

    Args:
        launcher: Launcher with its options.
        program: Program of the ranks, with its arguments.
    """

    launcher: Sequence[str]
    program: Sequence[str]

    def command(self, placement: Placement) -> list[str]:
        """Returns the command that starts the ranks.

        Raises:
            ValueError: If the hosts cannot be given to this launcher.
        """
        return [*self._launch(placement), *self.program]

    def _launch(self, placement: Placement) -> list[str]:
        number = "-n", str(placement.n_ranks)
        if placement.is_free:
            return [*self.launcher, *number]
        return [*_with_hosts(self.launcher, placement), *number]

    def answering(self, names: Collection[str]) -> set[str]:
        """Returns the hosts on which the launcher can start a program.

        All hosts are asked at once, by a program that ends without doing anything. A
        host that has not answered after some seconds is out of reach.

        Args:
            names: Names of the hosts to ask.
        """
        asked = {}
        for name in names:
            command = [*self._launch(Placement((Host(name, 1),))), "true"]
            # A launcher that cannot be started reaches no host.
            with contextlib.suppress(OSError):
                asked[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        deadline, found = time.monotonic() + SECONDS_TO_ANSWER, set()
        for name, process in asked.items():
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            if code == 0:
                found.add(name)
        return found


def _with_hosts(launcher: Sequence[str], placement: Placement) -> list[str]:
    """Returns a launcher's command with the hosts that it is to use."""
    hosts = ",".join(map(str, placement.hosts))
    names = ",".join(host.name for host in placement.hosts)
    marked = [word.replace(_HOSTS, hosts).replace(_NAMES, names) for word in launcher]
    if marked != list(launcher):
        return marked
    kind = os.path.basename(launcher[0])
    if kind == "srun":
        each = ",".join(h.name for h in placement.hosts for _ in range(h.slots))
        # Slurm then starts the ranks in this order.
        nodes = f"--nodes={len(placement.hosts)}"
        return [*launcher, nodes, "--distribution=arbitrary", f"--nodelist={each}"]
    if kind.startswith(("mpiexec", "mpirun", "orterun", "prterun")):
        option = "-host" if _is_open_mpi(launcher[0]) else "-hosts"
        return [*launcher, option, hosts]
    raise ValueError(
        f"the launcher {launcher[0]!r} is not known, so hosts cannot be given to it:"
        f" write {_HOSTS} where its command has them, as in 'mine --on {_HOSTS}'"
    )


_is_open: dict[str, bool] = {}


def _is_open_mpi(program: str) -> bool:
    """Returns whether a launcher is Open MPI's, by what it prints as its version."""
    if program not in _is_open:
        text = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            text = subprocess.run(
                [program, "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS_FOR_VERSION,
                check=False,
            ).stdout
        _is_open[program] = any(
            word in text for word in ("Open MPI", "OpenRTE", "PRRTE")
        )
    return _is_open[program]
