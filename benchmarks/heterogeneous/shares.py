"""Shares of a core that running hosts ask for.

Hosts load their modules with equal shares. Then they get the shares of one measurement
after the other, without being started again. ::

    the first rank, on a host          the process that started the hosts
    ask(folder, 0, shares)  -- 0.json -->  serving(folder): Cluster.set of each host
                            <-- 0.done --
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common.hosts import Hosts, run
from benchmarks.heterogeneous.points import Point, to_json

#: Share of a host that only waits; seconds between two looks for a file; seconds that
#: an answer may take.
IDLE, PAUSE, PATIENCE = 0.02, 0.05, 60.0
#: Seconds that hosts may take to start, and that a point may take.
STARTING, OF_POINT = 120, 600


def run_points(
    points: Sequence[Point], module: str, job: dict[str, Any], seconds: float = OF_POINT
) -> Any:
    """Runs a module's work for points, on hosts that are started once.

    Args:
        points: Points, whose links have the same rate.
        module: Name of the module; its part on each host uses
            `benchmarks.heterogeneous.rounds.in_turn`.
        job: Argument of the module's ``work``. The points are added as ``'points'``,
            and the folder for :func:`ask` as ``'shares'``.
        seconds: Seconds that each point may take.

    Returns:
        The result of the first rank.
    """
    n = max(point.hosts for point in points)
    with tempfile.TemporaryDirectory() as folder:
        return run(
            # With equal shares, so that no host loads its modules for long.
            Hosts(n, points[0].cpu / n, points[0].rate),
            module,
            {"points": [to_json(point) for point in points], "shares": folder, **job},
            STARTING + seconds * len(points),
            serving(Path(folder)),
        )


def ask(folder: Path, number: int, shares: Sequence[float]) -> None:
    """Asks for shares, and waits until the hosts have them.

    Args:
        folder: Folder of the files, which both sides can see.
        number: Number of the request, from 0 on.
        shares: Share of each host, the first ones; the others get next to nothing.

    Raises:
        TimeoutError: If nobody answers.
    """
    part, request, answer = (
        folder / f"{number}.{suffix}" for suffix in ("part", "json", "done")
    )
    part.write_text(json.dumps(list(shares)))
    part.rename(request)
    deadline = time.monotonic() + PATIENCE
    while not answer.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"nobody gave the hosts their shares in {PATIENCE:g} s: the process"
                f" that started them has ended, or failed as its output tells"
            )
        time.sleep(PAUSE)


def serving(folder: Path) -> Callable[[Cluster], None]:
    """Returns a function that gives hosts the shares that they ask for.

    The function ends when the folder is removed.
    """

    def serve(cluster: Cluster) -> None:
        number = 0
        while folder.exists():
            request = folder / f"{number}.json"
            if not request.exists():
                time.sleep(PAUSE)
                continue
            shares = json.loads(request.read_text())
            for host in range(len(cluster)):
                cluster.set(host, cpus=shares[host] if host < len(shares) else IDLE)
            (folder / f"{number}.done").touch()
            number += 1

    return serve
