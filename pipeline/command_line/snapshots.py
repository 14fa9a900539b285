"""The commands ``divisible repartition`` and ``divisible export``."""

from __future__ import annotations

import click

from divisible import Plan
from pipeline.command_line.console import say
from pipeline.command_line.options import (
    FILE,
    Parsed,
    output,
    positive,
    positives,
    speaking,
)
from pipeline.snapshots.files import Snapshot, stage_file
from pipeline.snapshots.tools import export_npz, repartition

_SNAPSHOT = click.Path(exists=True, file_okay=False)


@click.command("repartition")
@click.argument("snapshot", type=_SNAPSHOT)
@click.option(
    "--stages", type=Parsed("number", positive), help="Cut into equally many layers."
)
@click.option(
    "--cuts",
    type=Parsed("position,...", positives),
    help="Positions to cut at, such as 7,15,26 for four stages.",
)
@click.option("--plan", type=FILE, help="A plan that was saved.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    help="Where to write.  [default: SNAPSHOT_on_N_stages]",
)
@speaking
def repartition_command(
    snapshot: str,
    stages: int | None,
    cuts: list[int] | None,
    plan: str | None,
    output: str | None,
) -> None:
    """Cuts a snapshot's layers into other stages.

    SNAPSHOT is the directory that a training run has written. A run resumes on any
    number of stages as it is; after this, each rank finds its layers in one file.
    """
    if sum(option is not None for option in (stages, cuts, plan)) != 1:
        raise click.UsageError("give one of --stages, --cuts and --plan")
    n_layers = Snapshot.open(snapshot).n_layers
    if stages is not None:
        new = Plan.uniform(n_layers, stages)
    elif cuts is not None:
        new = Plan([0, *cuts, n_layers])
    else:
        new = Plan.load(plan)
    if output is None:
        output = f"{snapshot.rstrip('/')}_on_{new.n_stages}_stages"
    written = Snapshot.open(repartition(snapshot, new, output))
    for number, (start, end) in enumerate(written.layer_ranges):
        size = written.files[stage_file(number)]["bytes"]
        say(f"stage {number}: layers {start} to {end - 1}, {size:,} bytes")
    say(f"written to {output}")


@click.command("export")
@click.argument("snapshot", type=_SNAPSHOT)
@output("model.npz")
@speaking
def export_command(snapshot: str, output: str) -> None:
    """Writes the undivided model as chainer.serializers.save_npz would have.

    SNAPSHOT is the directory that a training run has written.
    """
    export_npz(snapshot, output)
    say(f"written to {output}")
