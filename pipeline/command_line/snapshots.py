"""The commands ``divisible repartition`` and ``divisible export``."""

from __future__ import annotations

import click

from divisible import Plan
from pipeline.command_line import console, options
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.manifest import stage_file
from pipeline.snapshots.tools import export_npz, repartition

_SNAPSHOT = click.Path(exists=True, file_okay=False)


@click.command("repartition")
@click.argument("snapshot", type=_SNAPSHOT)
@click.option("--stages", type=options.NUMBER, help="Cut into equally many layers.")
@click.option(
    "--cuts",
    type=options.Parsed("position,...", options.positives),
    help="Positions to cut at, such as 7,15,26 for four stages.",
)
@click.option("--plan", type=options.Loaded(Plan.load), help="A plan that was saved.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    help="Where to write.  [default: SNAPSHOT_on_N_stages]",
)
@options.speaking
def repartition_command(
    snapshot: str,
    stages: int | None,
    cuts: list[int] | None,
    plan: Plan | None,
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
        plan = Plan.uniform(n_layers, stages)
    elif cuts is not None:
        plan = Plan([0, *cuts, n_layers])
    if output is None:
        output = f"{snapshot.rstrip('/')}_on_{plan.n_stages}_stages"
    written = Snapshot.open(repartition(snapshot, plan, output))
    for number, (start, end) in enumerate(written.layer_ranges):
        size = written.files[stage_file(number)]["bytes"]
        console.say(f"stage {number}: layers {start} to {end - 1}, {size:,} bytes")
    console.say(f"written to {output}")


@click.command("export")
@click.argument("snapshot", type=_SNAPSHOT)
@options.output("model.npz")
@options.speaking
def export_command(snapshot: str, output: str) -> None:
    """Writes the undivided model as chainer.serializers.save_npz would have.

    SNAPSHOT is the directory that a training run has written.
    """
    export_npz(snapshot, output)
    console.say(f"written to {output}")
