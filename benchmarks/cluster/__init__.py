"""A small cluster on one Linux machine: its hosts have CPU shares, memory and links.

Each host is a network namespace and a control group: real processes, real TCP, real
limits; and it has a name and shared memory of its own. A run on 16 hosts of 2 cores
takes long, but ratios between runs on the same hosts are honest.

::

    the caller ---- guardian            takes all of this down when the caller ends
        |
        +-- namespace of the switch: mpiexec, and a bridge with a port for each host
              |               |
            host0           host1       the ports: what a host is sent is limited here
              |               |
            eth0            eth0        what it sends is limited here
        namespace 0     namespace 1     and a control group each: CPU share, memory

Nothing is added to the machine's own network, so that clusters stand side by side.

Example::

    from benchmarks.cluster import cluster

    with cluster(cpus=[0.4] * 4, rate="1gbit", memory="1G") as hosts:
        hosts.run(4, [sys.executable, "train.py"], timeout=60)
        hosts.set(2, cpus=0.1)

``python -m benchmarks.cluster --help`` does the same from a shell.

The modules::

    requirements.py    what this machine lacks to emulate hosts
    network.py         namespaces, the switch, rates of links
    control_groups.py  CPU shares and memory, by the files of
        control_groups_v1.py, control_groups_v2.py
    construction.py    makes all of it, and removes all of it
    registry.py        the clusters that are up, and their owners
    guardian.py        the process that makes a cluster and removes it
    enter.sh           starts a program on a host, in place of mpiexec's ssh
    emulated.py        runs and changes of a cluster that is up
    starting.py        brings one up
"""

from benchmarks.cluster.construction import ClusterError, Host
from benchmarks.cluster.emulated import Cluster
from benchmarks.cluster.network import bandwidth
from benchmarks.cluster.requirements import missing
from benchmarks.cluster.starting import cluster

__all__ = ["Cluster", "ClusterError", "Host", "bandwidth", "cluster", "missing"]
