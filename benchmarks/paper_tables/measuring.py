"""Measures points on hosts, one group after the other. No MPI here."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cluster import ClusterError
from benchmarks.common.hosts import HostsFailedError, run
from benchmarks.paper_tables.durations import seconds_of
from benchmarks.paper_tables.models import cuts
from benchmarks.paper_tables.points import OURS, SAMPLES, Point, to_json
from benchmarks.paper_tables.profiles import DEADLINE, WORK, profiles_of
from benchmarks.paper_tables.samples import Sample, read

Entry = tuple[Point, int]


def missing_rounds(
    measured: Mapping[Point, list[Sample]], points: Sequence[Point], rounds: int
) -> list[Entry]:
    """Returns points and rounds that were not measured.

    Args:
        measured: Samples of each point.
        points: Points to measure.
        rounds: Rounds to measure of each.

    Returns:
        The points of a group follow each other, in turn within a round.
    """
    done = {
        point: {sample.round for sample in samples}
        for point, samples in measured.items()
    }
    groups: dict[tuple, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    return [
        (point, number)
        for group in groups.values()
        for number in range(rounds)
        for point in group
        if number not in done.get(point, ())
    ]


def measure(data: Path, todo: Sequence[Entry], cpu: float, quick: bool) -> list[str]:
    """Brings the hosts of one group after the other up and measures on them.

    Args:
        data: Folder for samples and profiles.
        todo: Points and rounds, by groups.
        cpu: Share of all hosts together, in cores.
        quick: Whether a sample has one timed step.

    Returns:
        Texts of failures; later groups are measured nevertheless.
    """
    file = data / SAMPLES
    # All rounds of a point are cut alike, whatever is chosen now.
    kept = {point: each[-1].cuts for point, each in read(file).items()}
    seconds = seconds_of(todo, cpu, quick)
    done = list(itertools.accumulate(seconds))
    entries = [
        {"point": point, "round": number, "done": so_far, "left": done[-1] - so_far}
        for (point, number), so_far in zip(todo, done)
    ]
    begun, failed = time.time(), []
    for group, mine in itertools.groupby(entries, lambda entry: entry["point"].group):
        mine = list(mine)
        hosts = mine[0]["point"].on(cpu)
        try:
            for entry in mine:
                point = entry["point"]
                if point not in kept:
                    is_ours = point.cut == OURS
                    profiles = profiles_of(data, point, quick) if is_ours else []
                    kept[point] = cuts(point, profiles, hosts)
                entry.update(point=to_json(point), cuts=kept[point])
            job = {
                "task": "steps",
                "todo": mine,
                "begun": begun,
                "share": hosts.share,
                "quick": quick,
                "file": str(file.resolve()),
            }
            run(hosts, WORK, job, DEADLINE)
        except (HostsFailedError, ClusterError, subprocess.TimeoutExpired) as error:
            failed.append(f"{group}: {error}")
            print(failed[-1], flush=True)
    return failed
