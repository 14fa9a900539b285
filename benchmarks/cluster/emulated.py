"""A cluster that is up, and what can be done with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cluster import control_groups, network, registry, requirements
from benchmarks.cluster.construction import (
    ClusterError,
    Host,
    check,
    groups_of_hosts,
    limit,
    member,
    remove_stale,
)
from benchmarks.cluster.network import SWITCH

ROOT = Path(__file__).parents[2]
ENTER = Path(__file__).with_name("enter.sh")
#: Seconds that a cluster may take to come up or go down, and a program to end that was
#: told to.
TIMEOUT, GRACE = 60.0, 10.0


class Launch(NamedTuple):
    """The start of a program: the words of a command, and its environment."""

    argv: list[str]
    env: dict[str, str]


class Status(NamedTuple):
    """The limits of a host now, and the ids of the processes that run there."""

    cpus: float
    rate: str | None
    memory: int | None
    is_up: bool
    processes: list[int]


class Cluster:
    """A cluster that is up.

    Args:
        name: Name of the cluster.

    Raises:
        ClusterError: If there is no cluster with the name.
    """

    def __init__(self, name: str) -> None:
        entry = registry.read(name)
        if entry is None:
            raise ClusterError(f"no cluster {name!r} is up")
        self.name = name
        self.owner = entry.owner
        self._n_hosts = len(groups_of_hosts(name))

    def __len__(self) -> int:
        return self._n_hosts

    def _member(self, host: int) -> str:
        if not 0 <= host < len(self):
            raise ClusterError(f"there is no host {host} of {len(self)}")
        return member(self.name, host)

    @property
    def _switch(self) -> str:
        return member(self.name, SWITCH)

    def launch(
        self, n: int, argv: Sequence[str], hosts: Sequence[int] | None = None
    ) -> Launch:
        """Returns what starts an MPI program, for `subprocess.Popen`.

        Args:
            n: Number of ranks.
            argv: The program and its arguments.
            hosts: Where, in turn from rank 0 on; on all hosts if ``None``.
        """
        where = range(len(self)) if hosts is None else hosts
        for host in where:
            self._member(host)
        each = -(-n // len(where))
        places = ",".join(f"{network.address(host)}:{each}" for host in where)
        mpiexec = [str(requirements.mpiexec()), "-launcher", "ssh"]
        mpiexec += ["-launcher-exec", str(ENTER), "-iface", network.BRIDGE]
        mpiexec += ["-hosts", places, "-n", str(n)]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "EMULATED_CLUSTER": member(self.name, "")[:-1],
            "EMULATED_GROUPS": " ".join(map(str, control_groups.version().parents)),
            # MPI must not notice that the hosts share their memory.
            "MPIR_CVAR_NOLOCAL": str(int(each == 1)),
            "UCX_TLS": "tcp,self" if each == 1 else "tcp,self,sm",
            "UCX_NET_DEVICES": "eth0",
        }
        return Launch([str(ENTER), SWITCH, *mpiexec, *map(str, argv)], env)

    def run(
        self,
        n: int,
        argv: Sequence[str],
        *,
        timeout: float,
        hosts: Sequence[int] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess:
        """Runs an MPI program and waits for its end.

        Args:
            n: Number of ranks.
            argv: The program and its arguments.
            timeout: Seconds that it may take.
            hosts: Hosts of the ranks, in turn from rank 0 on; all hosts if ``None``.
            **options: Options of `subprocess.Popen`, such as ``stdout`` and ``text``.

        Raises:
            subprocess.TimeoutExpired: If the program took longer; it has been ended
                then.
        """
        command, env = self.launch(n, argv, hosts)
        options = {"stdin": subprocess.DEVNULL, **options}
        process = subprocess.Popen(command, env=env, **options)
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                self._end(process)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def _end(self, process: subprocess.Popen) -> None:
        """Ends a program, and if it does not end, all processes on all hosts."""
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            control_groups.kill([self._switch, *groups_of_hosts(self.name)])
            process.wait(GRACE)

    def set(
        self, host: int, cpus: float | None = None, rate: str | None = None
    ) -> None:
        """Changes the limits of a host, also while a program runs.

        Args:
            host: Number of the host.
            cpus: Share of the machine, in cores.
            rate: Rate of the link; ``'unlimited'`` for none.
        """
        name = self._member(host)
        if cpus is not None:
            check(Host(cpus))
            control_groups.set_cpus(name, cpus)
        if rate is not None:
            check(Host(1.0, limit(rate)))
            network.set_rate(self._switch, host, name, limit(rate))

    def link(self, host: int, is_up: bool) -> None:
        """Cuts a host off from the others, or joins it again."""
        self._member(host)
        network.set_link(self._switch, host, is_up)

    def status(self) -> list[Status]:
        """Asks the kernel what each host has."""
        found = []
        for host in range(len(self)):
            name = self._member(host)
            found.append(
                Status(
                    control_groups.cpus_of(name),
                    network.rate_of(name),
                    control_groups.memory_of(name),
                    network.is_up(self._switch, host),
                    control_groups.processes(name),
                )
            )
        return found

    def peak_memory(self, host: int) -> int:
        """Returns the most bytes that the processes of a host had at once."""
        return control_groups.peak_memory(self._member(host))

    def down(self) -> None:
        """Ends all processes on the hosts, and removes the cluster."""
        deadline = time.monotonic() + TIMEOUT
        while registry.file_of(self.name).exists():
            entry = registry.read(self.name)
            if entry is None:
                # The guardian was killed, or could not remove everything.
                remove_stale()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(entry.guardian, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name!r} is not down after {TIMEOUT:g} s")
            time.sleep(0.02)
