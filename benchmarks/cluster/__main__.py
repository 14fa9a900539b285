"""The command ``python -m benchmarks.cluster``."""

from __future__ import annotations

import os

import click

from benchmarks.cluster import network, registry, starting
from benchmarks.cluster.construction import UNLIMITED
from benchmarks.cluster.emulated import Cluster

name_option = click.option(
    "--name", default="default", show_default=True, help="Of the cluster."
)


class Group(click.Group):
    """Commands whose errors are said without a traceback."""

    def invoke(self, context: click.Context) -> object:
        """Runs the command."""
        try:
            return super().invoke(context)
        except click.exceptions.Exit:
            raise
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Group)
def main() -> None:
    """Emulates a small cluster on this machine, and runs MPI programs on it.

    Every host is a network namespace and a control group, with a share of the machine's
    cores and limits on its link and its memory. Needs root, control groups (version 1
    or 2), iproute2 and MPICH's mpiexec.

    \b
    python -m benchmarks.cluster up --cpus 1,0.5,0.25 --memory 2G --rate 1gbit
    python -m benchmarks.cluster run -n 3 -- python train.py
    python -m benchmarks.cluster set 0 --cpus 0.25 --rate 100mbit
    python -m benchmarks.cluster link 1 --down
    python -m benchmarks.cluster status
    python -m benchmarks.cluster down
    """  # noqa: D301


@main.command()
@click.option("--cpus", default="0.5", show_default=True, help="Cores of each host.")
@click.option("--count", default=1, show_default=True, help="Times that --cpus counts.")
@click.option("--rate", default=UNLIMITED, help="Of the links, such as 1gbit.")
@click.option("--memory", help="Of the hosts, such as 1G.")
@click.option("--while", "owner", type=int, help="Process with which it goes down.")
@click.option("--overcommit", is_flag=True, help="Allow more cores than there are.")
@name_option
def up(
    cpus: str,
    count: int,
    rate: str,
    memory: str | None,
    owner: int | None,
    overcommit: bool,
    name: str,
) -> None:
    """Bring hosts up, until `down` or the end of a process.

    --cpus, --rate and --memory are for all hosts, or one for each with commas between.
    """
    shares = [float(share) for share in cpus.split(",")] * count
    limits = (_each(rate), _each(memory))
    hosts = starting.as_hosts(shares, *limits)
    starting.start(name, hosts, owner, overcommit)
    click.echo(f"{len(hosts)} hosts are up")


def _each(text: str | None) -> str | list[str] | None:
    return text.split(",") if text and "," in text else text


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("-n", "n_ranks", type=int, required=True, help="Number of ranks.")
@click.option("--hosts", help="Where, such as 0,2; on all hosts if not given.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@name_option
def run(n_ranks: int, hosts: str | None, command: tuple[str, ...], name: str) -> None:
    """Run an MPI program on the hosts."""
    where = [int(host) for host in hosts.split(",")] if hosts else None
    argv, env = Cluster(name).launch(n_ranks, command, where)
    os.execve(argv[0], argv, env)


@main.command(name="set")
@click.argument("host", type=int)
@click.option("--cpus", type=float, help="In cores.")
@click.option("--rate", help=f"Of its link, such as 1gbit, or {UNLIMITED}.")
@name_option
def set_(host: int, cpus: float | None, rate: str | None, name: str) -> None:
    """Change a host's share or rate, also while a program runs."""
    Cluster(name).set(host, cpus=cpus, rate=rate)


@main.command()
@click.argument("host", type=int)
@click.option("--up/--down", "is_up", required=True, help="Join it, or cut it off.")
@name_option
def link(host: int, is_up: bool, name: str) -> None:
    """Cut a host off from the others, or join it again."""
    Cluster(name).link(host, is_up)


@main.command()
def status() -> None:
    """Print the hosts that are up and their limits."""
    entries, stale = registry.entries()
    for entry in entries:
        until = "down" if entry.owner is None else f"the end of process {entry.owner}"
        click.echo(f"{entry.name}, until {until}:")
        for host, now in enumerate(Cluster(entry.name).status()):
            memory = UNLIMITED if now.memory is None else f"{now.memory / 2**20:g} MiB"
            click.echo(
                f"  host {host}  {network.address(host)}  {now.cpus:g} cores  memory"
                f" {memory}  link {now.rate or UNLIMITED}"
                f"{'' if now.is_up else ', cut'}  {len(now.processes)} processes"
            )
    for name in stale:
        click.echo(f"{name}: left over, for its guardian was killed; `up` removes it")
    if not entries and not stale:
        click.echo("no cluster is up")


@main.command()
@name_option
def down(name: str) -> None:
    """End all processes on the hosts, and remove them."""
    Cluster(name).down()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.cluster")
