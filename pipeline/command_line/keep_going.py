"""``divisible run --keep-going``: the supervisor of a run, from its options."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import click

from divisible.communication.launchers import mpiexec
from pipeline.command_line.control import default_directory, remove_dead_directories
from pipeline.supervision.budget import Budget
from pipeline.supervision.fleet import Fleet
from pipeline.supervision.hosts import Host, allocated, read_hosts, with_slots
from pipeline.supervision.launching import Job
from pipeline.supervision.orders import Orders
from pipeline.supervision.supervisor import Supervisor
from pipeline.training import control_files


class Wish(NamedTuple):
    """The options of a supervised run; see ``divisible run --help``."""

    n_ranks: int
    launcher: str | None = None
    restarts: int | None = None
    log: Path | None = None
    plan: str | None = None
    hosts: str | None = None
    spares: str | None = None
    shrink: bool = False
    grow: bool = False
    control: Path | None = None


def keep_going_with(wish: Wish, options: Sequence[str], script: Sequence[str]) -> int:
    """Runs a supervisor, and returns its exit code.

    Args:
        wish: The options of the run.
        options: Options of ``divisible run`` for the ranks.
        script: The script and its arguments.

    Raises:
        click.UsageError: If the options do not go together.
        ValueError: If hosts or launcher are wrong, or the run's directory is another's.
        OSError: If a file of hosts cannot be read, or the launcher cannot be started.
    """
    launcher = shlex.split(wish.launcher) if wish.launcher else [mpiexec()]
    budget = Budget() if wish.restarts is None else Budget(wish.restarts)
    with _orders(wish.control, shlex.join(script)) as (orders, folder):
        controlled = [] if folder is None else ["--controlled-by", str(folder)]
        main = "import divisible_command; divisible_command.main()"
        program = [sys.executable, "-c", main, "run", *options, *controlled, *script]
        job = Job(launcher, program)
        fleet = _fleet(wish, job)
        supervisor = Supervisor(job, fleet, budget, wish.log, orders, wish.grow)
        return supervisor.run()


def _fleet(wish: Wish, job: Job) -> Fleet:
    """Returns the hosts of a run, of which there are enough for its ranks."""
    hosts = read_hosts(wish.hosts) if wish.hosts else []
    if not hosts and (wish.spares or wish.shrink or wish.grow):
        hosts = allocated()
    if wish.spares and not hosts:
        raise click.UsageError("--spares needs the other hosts as well: give --hosts")
    hosts = with_slots(hosts, wish.n_ranks) or [Host("", wish.n_ranks)]
    if wish.spares:
        known, most = {host.name for host in hosts}, max(host.slots for host in hosts)
        for host in read_hosts(wish.spares):
            if host.name in known:
                raise click.UsageError(
                    f"{host.name} is in --hosts and in --spares: leave it out of one"
                )
            hosts.append(host._replace(slots=host.slots or most))
    fits = _fits(wish.plan, wish.n_ranks)
    fleet = Fleet(hosts, wish.n_ranks, wish.shrink, job.answering, fits)
    placement = fleet.place()
    if placement is None or placement.n_ranks < wish.n_ranks:
        raise click.UsageError(
            f"-n {wish.n_ranks} are more ranks than the hosts may run, which is"
            f" {sum(host.slots for host in hosts)}: {', '.join(map(str, hosts))}"
        )
    # A launcher that cannot be given hosts is refused before anything starts.
    job.command(placement)
    return fleet


def _fits(plan: str | None, n_ranks: int) -> Callable[[int], bool]:
    """Returns a function of a number of ranks: whether there is a plan for it."""
    if plan is None:
        return lambda n_ranks: True
    # This module loads what a run without a plan does not need.
    from pipeline.start.plan_choice import RANKS

    if RANKS not in plan:
        return lambda n_ranks: True
    path = plan.replace(RANKS, str(n_ranks))
    if not os.path.exists(path):
        raise click.BadParameter(
            f"there is no plan {path}: make it with divisible plan", param_hint="--plan"
        )
    return lambda n_ranks: os.path.exists(plan.replace(RANKS, str(n_ranks)))


@contextlib.contextmanager
def _orders(
    given: Path | None, script: str
) -> Iterator[tuple[Orders | None, Path | None]]:
    """Opens the directory of a run for a block, and says how to reach the run.

    A run that has no directory of its own goes on without.
    """
    with contextlib.ExitStack() as stack:
        try:
            if given is None:
                remove_dead_directories()
            folder = default_directory(os.getpid()) if given is None else given
            folder = stack.enter_context(control_files.opened(folder.absolute()))
        except OSError as error:
            if given is not None:
                raise
            _say(f"'divisible control' does not reach this run: {error}")
            yield None, None
            return
        name = os.getpid() if given is None else shlex.quote(str(given))
        _say(f"'divisible control {name}' reaches this run")
        yield Orders(folder, script), folder


def _say(text: str) -> None:
    click.echo(f"divisible run: {text}", err=True)
