"""Brings clusters up, for the time of a ``with`` or until a request to remove them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.cluster import control_groups, network, registry, requirements
from benchmarks.cluster.construction import (
    ClusterError,
    Host,
    check,
    groups_of_hosts,
    limit,
)
from benchmarks.cluster.emulated import ROOT, TIMEOUT, Cluster


@contextmanager
def cluster(
    cpus: Sequence[float],
    rate: str | None | Sequence[str | None] = None,
    memory: str | None | Sequence[str | None] = None,
    name: str | None = None,
    overcommit: bool = False,
) -> Iterator[Cluster]:
    """Has hosts up for the time of a ``with``, or until this process ends.

    A process of its own removes the hosts at the end, however this process ends.

    Args:
        cpus: Share of each host in the machine, in cores.
        rate: Rate of each host's link, such as ``'1gbit'``, one for all or one for
            each; no limit if ``None``.
        memory: Memory of each host, such as ``'1G'``, one for all or one for each; no
            limit if ``None``.
        name: Name of the cluster; by default one that is not in use.
        overcommit: Whether the hosts may have more cores than the machine, and so slow
            each other down.

    Raises:
        ClusterError: If this machine cannot have such hosts.
    """
    own_name = name or f"of_{os.getpid()}_{time.monotonic_ns()}"
    each = as_hosts(cpus, rate, memory)
    process = start(own_name, each, os.getpid(), overcommit)
    hosts = Cluster(own_name)
    try:
        yield hosts
    finally:
        hosts.down()
        process.wait(TIMEOUT)


def as_hosts(
    cpus: Sequence[float],
    rate: str | None | Sequence[str | None] = None,
    memory: str | None | Sequence[str | None] = None,
) -> list[Host]:
    """Returns what each host has; see `cluster`."""
    columns = []
    for what, values in (("rates", rate), ("sizes of memory", memory)):
        if values is None or isinstance(values, str):
            values = [values] * len(cpus)
        if len(values) != len(cpus):
            raise ClusterError(f"{len(values)} {what} for {len(cpus)} hosts")
        columns.append([None if each is None else limit(each) for each in values])
    return [Host(*each) for each in zip(cpus, *columns)]


def start(
    name: str, hosts: Sequence[Host], owner: int | None, overcommit: bool = False
) -> subprocess.Popen:
    """Brings a cluster up and returns its guardian.

    Args:
        name: Name of the cluster.
        hosts: Limits of the hosts.
        owner: Process at whose end the cluster is removed; ``None`` if only on request.
        overcommit: Whether the hosts may have more cores than the machine.

    Raises:
        ClusterError: If the cluster does not come up.
    """
    reason = requirements.missing()
    if reason:
        raise ClusterError(f"no hosts can be emulated here: {reason}")
    registry.file_of(name)  # Refuses a text that cannot be a name.
    if not 1 <= len(hosts) <= network.MOST_HOSTS:
        raise ClusterError(f"a cluster has 1 to {network.MOST_HOSTS} hosts")
    for host in hosts:
        check(host)
    if not overcommit:
        _check_sum(hosts)
    guardian = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cluster.guardian"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with guardian.stdin, guardian.stdout:
        task = {"name": name, "hosts": hosts, "owner": owner}
        guardian.stdin.write(json.dumps(task).encode() + b"\n")
        guardian.stdin.flush()
        if not select.select([guardian.stdout], [], [], TIMEOUT)[0]:
            guardian.terminate()
            raise ClusterError(f"{name!r} is not up after {TIMEOUT:g} s")
        complaint = guardian.stdout.read().decode().strip()
    if complaint:
        guardian.wait(TIMEOUT)
        raise ClusterError(complaint)
    return guardian


def _check_sum(hosts: Sequence[Host]) -> None:
    """Refuses more cores than the machine has beside the hosts that are up."""
    used = sum(map(control_groups.cpus_of, groups_of_hosts()))
    wanted, there = sum(host.cpus for host in hosts), len(os.sched_getaffinity(0))
    if used + wanted > there:
        beside = f" beside hosts with {used:g}" if used else ""
        raise ClusterError(
            f"hosts with {wanted:g} cores{beside} are too much for {there}: they would"
            " slow each other down. Ask for fewer cores"
            + (", or wait until the other hosts are down" if used else "")
        )
