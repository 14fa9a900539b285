"""The command ``divisible stragglers``."""

from __future__ import annotations

import click

from divisible.planning.units import count
from pipeline.command_line import console, options
from pipeline.rebalancing.log import read_log, slow_ranks, stragglers


@click.command("stragglers")
@click.argument("checks", metavar="LOG", type=options.Loaded(read_log, "*.jsonl"))
@click.option(
    "--below",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="Share of its usual speed below which a rank has fallen behind.",
)
@options.speaking
def stragglers_command(checks, below: float) -> None:
    """Lists the hosts of a run that fell behind, with the time, and the slow ones.

    LOG is the file rebalancing.jsonl that the extension Rebalance writes, or its
    folder.
    """
    rows = [
        (
            str(each.rank),
            each.host,
            f"{each.first} to {each.last}",
            f"{each.speed:.2f}",
            str(each.n_moves),
        )
        for each in stragglers(checks, below)
    ]
    n_moves = sum(check.moved is not None for check in checks)
    last = checks[-1].iteration if checks else 0
    n_checks = f"{len(checks)} check{'' if len(checks) == 1 else 's'}"
    moves = f"{n_moves} move{'' if n_moves == 1 else 's'}"
    console.say(f"{n_checks} up to iteration {last}, {moves}")
    if rows:
        columns = "rank", "host", "iterations", "speed", "moves"
        console.print_table(columns, rows, left=(1, 2))
    else:
        console.say("no rank fell behind")
    for slow in slow_ranks(checks, below):
        console.say_wrapped(
            f"rank {slow.rank} on {slow.host} has {slow.speed:.2f} of the speed of"
            f" others in most checks"
        )
    unknown = sum(check.speeds is None for check in checks)
    if unknown:
        console.say_wrapped(
            f"{count(unknown, 'check')} had nothing to compare ranks by, so slow hosts"
            f" are not known: give Rebalance a profile"
        )
