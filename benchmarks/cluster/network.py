"""Network namespaces of hosts, the switch between them, and the rates of links."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

#: The member of a cluster that is no host: it has the bridge, and mpiexec runs there.
SWITCH = "switch"
BRIDGE = "bridge"
NAMESPACES = Path("/run/netns")
MOST_HOSTS = 200
#: Size of a burst that passes even a slow link at once, and the longest wait of a
#: packet.
BURST, LATENCY = "256kb", "50ms"
#: Units of rates, in bits per second.
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
#: Seconds that a tool may take.
TIMEOUT = 60.0


def address(host: int) -> str:
    """Returns the address of a host within its cluster; enter.sh knows this too."""
    return f"10.77.0.{host + 1}"


def call(*words: str, lines: list[str] | None = None) -> str:
    """Runs ``ip`` or ``tc`` and returns what it prints.

    Args:
        *words: The command.
        lines: Lines of input for the command.

    Raises:
        RuntimeError: If the command fails.
    """
    done = subprocess.run(
        words,
        input="".join(f"{line}\n" for line in lines or []),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def make(names: dict[int | str, str]) -> None:
    """Makes the namespaces, the switch in one of them, and a link to each host.

    Args:
        names: Names of the namespaces: `SWITCH`'s, and those of hosts by their number.
    """
    hosts = [host for host in names if host != SWITCH]
    for name in names.values():
        call("ip", "netns", "add", name)
    # Hosts know each other's hardware addresses from the beginning. A kernel forgets
    # addresses that it finds out itself if all namespaces together have too many.
    ends = {host: (address(host), f"02:00:00:00:00:{host:02x}") for host in hosts}
    ends[SWITCH] = ("10.77.255.254", "02:00:00:00:01:00")
    lines = [
        f"link add {BRIDGE} address {ends[SWITCH][1]} type bridge",
        f"link set {BRIDGE} up",
        "link set lo up",
    ]
    for host in hosts:
        peer = f"eth0 address {ends[host][1]} netns {names[host]}"
        lines += [
            f"link add {_port(host)} type veth peer name {peer}",
            f"link set {_port(host)} master {BRIDGE} up",
        ]
    call("ip", "-n", names[SWITCH], "-batch", "-", lines=lines)
    for member, name in names.items():
        device = BRIDGE if member == SWITCH else "eth0"
        lines = [
            f"addr add {ends[member][0]}/16 dev {device}",
            f"link set {device} up",
            "link set lo up",
        ]
        lines += [
            f"neigh replace {place} lladdr {hardware} dev {device} nud permanent"
            for other, (place, hardware) in ends.items()
            if other != member
        ]
        call("ip", "-n", name, "-batch", "-", lines=lines)


def _port(host: int) -> str:
    return f"host{host}"


def bandwidth(rate: str | None) -> float:
    """Returns the bytes per second of a rate; infinite without one."""
    if rate is None:
        return float("inf")
    number, unit = _number_and_unit(rate)
    return float(number) * UNITS[unit] / 8


def spoken_rate(rate: str) -> str:
    """Returns a rate as people write it: ``'100 Mbit/s'`` for ``'100mbit'``."""
    number, unit = _number_and_unit(rate)
    # The prefix for a thousand is small, the others are capitals.
    return f"{number} {unit if unit == 'kbit' else unit.capitalize()}/s"


def _number_and_unit(rate: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", rate)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{rate!r} is no rate, such as '100mbit' or '1gbit'")
    return found[1], found[2]


def set_rate(switch: str, host: int, name: str, rate: str | None) -> None:
    """Limits a link both ways, or neither.

    Args:
        switch: Name of the switch's namespace.
        host: Number of the host.
        name: Name of the host's namespace.
        rate: Rate, such as ``'1gbit'``; ``None`` for no limit.
    """
    for namespace, device in ((name, "eth0"), (switch, _port(host))):
        tc, place = ("tc", "-n", namespace, "qdisc"), ("dev", device, "root")
        if rate is not None:
            limit = ("rate", rate, "burst", BURST, "latency", LATENCY)
            call(*tc, "replace", *place, "tbf", *limit)
        elif rate_of(namespace, device) is not None:
            call(*tc, "del", *place)


def rate_of(namespace: str, device: str = "eth0") -> str | None:
    """Returns the rate to which a link is limited, if it is."""
    found = json.loads(
        call("tc", "-j", "-n", namespace, "qdisc", "show", "dev", device)
    )
    rates = [each["options"]["rate"] for each in found if each["kind"] == "tbf"]
    if not rates:
        return None
    bits = 8 * rates[0]
    unit = next(u for u in reversed(UNITS) if bits >= UNITS[u] or u == "kbit")
    return f"{bits / UNITS[unit]:g}{unit}"


def set_link(switch: str, host: int, is_up: bool) -> None:
    """Pulls a host's cable out of the switch, or puts it in again."""
    state = "up" if is_up else "down"
    call("ip", "-n", switch, "link", "set", _port(host), state)


def is_up(switch: str, host: int) -> bool:
    """Returns whether a host's cable is in the switch."""
    (port,) = json.loads(call("ip", "-j", "-n", switch, "link", "show", _port(host)))
    return "UP" in port["flags"]


def namespaces_of(prefix: str) -> list[str]:
    """Returns the names of the namespaces that begin so."""
    return sorted(path.name for path in NAMESPACES.glob(f"{prefix}*"))


def remove(name: str) -> None:
    """Removes a namespace; its links go with it."""
    call("ip", "netns", "del", name)
