"""Whether VGG16 is slower on 16 hosts than on 8 of them.

    python benchmarks/twice_the_hosts.py --cluster PATH_OF_emulated_cluster

In `paper_tables` all hosts together have the same cores, so each of 16 is half as fast
as each of 8, and was measured to make less of its share. Here there are 16 equal hosts
from the beginning. `Plan.best` cuts the model for 8 of them and for all, and the
undivided step in plain Chainer and both plans take turns on these hosts. With 16 the
slowest layer limits the step: more of them can help only until it is alone on its host.

The layers' profiles are those of `paper_tables`, which are measured if they are not
there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import Result, alternate, machine, ratios
from _hosts import add_hosts_arguments, command_line, prepare, read_job, run

SCHEDULES = ("1f1b", "zb_h1")
#: Seconds that the run may take, and that a rank may wait for another.
DEADLINE, TIMEOUT = 3600, 600.0


def work(job: dict[str, Any], report: Path) -> None:
    """What each host does; the first one writes the report."""
    # Here, because the process that only starts the hosts should not start MPI.
    from _hosts import PAUSE
    from _mlp import step_seconds, undivided_step
    from mpi4py import MPI
    from paper_tables.models import build, minibatch
    from paper_tables.points import from_json

    from divisible import Plan
    from pipeline import Pipeline, abort_on_error

    abort_on_error()
    comm, point = MPI.COMM_WORLD, from_json(job["point"])
    x, t = minibatch(point, point.batch)
    # What this rank does in a step: nothing, where others work for it.
    steps = {name: lambda: None for name in job["plans"]}
    for name, file in job["plans"].items():
        plan = Plan.load(file)
        takes_part = comm.rank < plan.n_stages
        group = comm.Split(0 if takes_part else MPI.UNDEFINED, comm.rank)
        if takes_part:
            stage = build(point).divide(*plan.range(comm.rank))
            pipe = Pipeline(
                stage, group, plan.n_microbatches, plan.schedule, timeout=TIMEOUT
            )
            steps[name] = lambda pipe=pipe: pipe.step(x, t)
    steps["undivided"] = lambda: None
    if comm.rank == 0:
        steps["undivided"] = undivided_step(build(point).divide(None, None), x, t)

    def seconds(name: str) -> float:
        return step_seconds(comm, steps[name], PAUSE)

    # The first steps get their memory, and learn how large the messages are.
    names = {name: name for name in steps}
    alternate(names, 2, seconds)
    found = alternate(names, job["rounds"], seconds)
    if comm.rank == 0:
        report.write_text(json.dumps(found))


def main() -> None:
    """Plans, measures and writes the result."""
    task = read_job()
    if task:
        work(*task)
        return
    from paper_tables.cli import MALLOC, ROOT, profile
    from paper_tables.points import Scale, to_json

    from divisible import Network, Plan

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--hosts", type=int, default=16, help="of which half are compared with all")
    add("--microbatches", type=int, default=20)
    add("--rounds", type=int, default=9)
    add("--profiles", type=Path, default=ROOT / "docs" / "paper_tables")
    add("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    prepare()
    # What a step frees is kept, so that later ones find their memory there.
    os.environ.update(MALLOC)

    point = Scale().of("vgg16", arguments.hosts, arguments.microbatches)
    hosts = point.on(arguments.cpu)
    where = argparse.Namespace(cluster=arguments.cluster, output=arguments.profiles)
    profiles = profile(where, point)
    result = Result("twice_the_hosts", arguments.output)
    result.write(
        command_line(arguments.cluster),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"VGG16 of {point.size} x {point.size} pixels, batch {point.batch}, in"
        f" {point.microbatches} microbatches; {hosts.n} hosts with"
        f" {hosts.share:g} of a core and links of {hosts.rate} each",
        "",
    )
    plans = {}
    for n in (hosts.n // 2, hosts.n):
        plans[f"{n} hosts"] = Plan.best(
            profiles,
            n,
            network=Network(hosts.bandwidth),
            batch=point.batch,
            microbatches=[point.microbatches],
            schedules=SCHEDULES,
            checkpoints=["never"],
            speeds=hosts.share,
        )
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, f"{name}.json")) for name in plans}
        for name, plan in plans.items():
            plan.save(files[name])
        job = {
            "point": to_json(point),
            "plans": files,
            "rounds": arguments.rounds,
        }
        seconds = run(arguments.cluster, hosts, Path(__file__), job, DEADLINE)
    half, whole = plans
    result.write(f"{'':12} {'step s':>7}  speed-up")
    for name, each in seconds.items():
        result.write(
            f"{name:12} {statistics.median(each):7.2f} "
            f" {ratios(seconds['undivided'], each)}"
        )
    for name, plan in plans.items():
        result.write(f"{name}: {plan.n_stages} stages, {plan.schedule}, {plan.cuts}")
    faster = statistics.median(a / b for a, b in zip(seconds[half], seconds[whole]))
    result.write(
        "",
        f"{half} take {ratios(seconds[half], seconds[whole]).strip()} times as long as"
        f" {whole}; wanted 1 at least: {'met' if faster >= 1 else 'MISSED'}",
    )
    result.save()


if __name__ == "__main__":
    main()
