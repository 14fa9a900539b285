"""Whether this machine can emulate hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.cluster import control_groups

#: Changes of the network that a cluster makes, in namespaces that end with the command.
TRIAL = """
ip link add bridge type bridge
ip link add host0 type veth peer name eth0
ip link set host0 master bridge
tc qdisc add dev host0 root tbf rate 1mbit burst 256kb latency 50ms
"""


def mpiexec() -> str | None:
    """Returns the path of mpiexec: the environment's own, or the system's."""
    beside_python = Path(sys.executable).parent / "mpiexec"
    return str(beside_python) if beside_python.exists() else shutil.which("mpiexec")


def missing() -> str | None:
    """Returns why this machine cannot emulate hosts; ``None`` if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it needs root on Linux"
    if not hasattr(os, "pidfd_open"):
        return "it needs Linux 5.3, and a Python that was built for it"
    for tool, package in (
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("nsenter", "util-linux"),
        ("unshare", "util-linux"),
        ("hostname", "hostname"),
    ):
        if shutil.which(tool) is None:
            return f"there is no {tool}; install {package}"
    return control_groups.missing() or _missing_network() or _missing_mpiexec()


def _missing_network() -> str | None:
    words = ["unshare", "--net", "--mount", "/bin/sh", "-ec", TRIAL]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return f"the network cannot be made: {done.stderr.strip()}"
    return None


def _missing_mpiexec() -> str | None:
    path = mpiexec()
    if path is None:
        return "there is no mpiexec beside this Python or on the PATH"
    words = [path, "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if "HYDRA" not in done.stdout:
        return f"{path} is not MPICH's, which can be told what to take for ssh"
    return None
