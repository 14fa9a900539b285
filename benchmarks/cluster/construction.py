"""Makes the members of a cluster, its hosts and its switch, and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.cluster import control_groups, network, registry
from benchmarks.cluster.network import SWITCH

PREFIX = "emulated-"
UNLIMITED = "unlimited"


class ClusterError(RuntimeError):
    """A cluster that is not possible; the message says why."""


class Host(NamedTuple):
    """The limits of a host.

    Attributes:
        cpus: Share of the machine, in cores.
        rate: Rate of the link, such as ``'1gbit'``; no limit if ``None``.
        memory: Size of the memory, such as ``'1G'``; no limit if ``None``.
    """

    cpus: float
    rate: str | None = None
    memory: str | None = None


def limit(text: str) -> str | None:
    """Returns a limit, such as ``'1gbit'``; ``None`` for ``'unlimited'``."""
    return None if text == UNLIMITED else text


def check(host: Host) -> None:
    """Refuses what no host can have.

    Raises:
        ValueError: If there is something.
    """
    if host.cpus < control_groups.LEAST_CPUS:
        raise ValueError(
            f"a share of {host.cpus:g} cores is less than {control_groups.LEAST_CPUS:g}"
        )
    network.bandwidth(host.rate)
    if host.memory is not None:
        control_groups.n_bytes(host.memory)


def member(cluster: str, host: int | str) -> str:
    """Returns the name of a host's namespace and control group, or of the switch's."""
    return f"{PREFIX}{cluster}-{host}"


def groups_of_hosts(cluster: str | None = None) -> list[str]:
    """Returns the control groups of all hosts of a cluster, or of every cluster."""
    prefix = PREFIX if cluster is None else member(cluster, "")
    groups = control_groups.groups_of(prefix)
    return [name for name in groups if not name.endswith(f"-{SWITCH}")]


def build(cluster: str, hosts: Sequence[Host]) -> None:
    """Makes a cluster."""
    names = {host: member(cluster, host) for host in (SWITCH, *range(len(hosts)))}
    for name in names.values():
        control_groups.make(name)
    network.make(names)
    for i, host in enumerate(hosts):
        control_groups.set_cpus(names[i], host.cpus)
        if host.memory is not None:
            control_groups.set_memory(names[i], host.memory)
        network.set_rate(names[SWITCH], i, names[i], host.rate)


def remove(cluster: str) -> None:
    """Ends all processes of a cluster and removes all that is there of it.

    Its file, which says that something may be there, is the last to go.
    """
    prefix = member(cluster, "")
    groups = control_groups.groups_of(prefix)
    control_groups.kill(groups)
    for name in network.namespaces_of(prefix):
        network.remove(name)
    for name in groups:
        control_groups.remove(name)
    registry.file_of(cluster).unlink()


def remove_stale() -> None:
    """Removes what clusters have left whose guardian was killed."""
    _, stale = registry.entries()
    for name in stale:
        with registry.locked(name) as file:
            if file is not None:
                remove(name)
