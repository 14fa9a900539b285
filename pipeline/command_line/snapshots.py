"""The commands ``divisible repartition``, ``export`` and ``import``."""

from __future__ import annotations

from collections import Counter

import click
import numpy as np

from divisible import Plan
from divisible.files import written_aside
from pipeline.command_line import console, options
from pipeline.command_line.model_argument import make_model
from pipeline.exports.formats import FORMATS, export
from pipeline.snapshots.arrays import opened, position
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.names import stage_file
from pipeline.snapshots.npz_files import model_prefix
from pipeline.snapshots.repartitioning import repartition

_SNAPSHOT = click.Path(exists=True, file_okay=False)


@click.command("repartition")
@click.argument("snapshot", type=_SNAPSHOT)
@click.option("--stages", type=options.NUMBER, help="Cut into equally many layers.")
@click.option(
    "--cuts",
    type=options.Parsed("position,...", options.positives),
    help="Positions to cut at, such as 7,15,26 for four stages.",
)
@click.option("--plan", type=options.Loaded(Plan.load), help="File of a plan.")
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

    SNAPSHOT is a directory that a training run has written. A run can resume from it on
    any number of stages; after this command, each rank finds its layers in one file.
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
@click.option(
    "--to",
    type=click.Choice(list(FORMATS)),
    default="npz",
    show_default=True,
    help="The format; onnx and torch need --model and --input.",
)
@click.option("--model", help="MODULE:MODEL, as for divisible profile.")
@click.option(
    "--input",
    "sample",
    type=options.Parsed("shape", options.shape),
    help="The shape of a sample and its dtype, such as 3x32x32 or 35:int32.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Where to write.  [default: model.npz, .safetensors, .onnx or .pt]",
)
@options.speaking
def export_command(
    snapshot: str,
    to: str,
    model: str | None,
    sample: tuple[tuple[int, ...], str] | None,
    output: str | None,
) -> None:
    """Writes the undivided model, as Chainer's save_npz or for another library.

    SNAPSHOT is a directory that a training run has written. The file is compared with
    the snapshot, or its outputs with the outputs of the model.
    """
    if FORMATS[to].needs_model and (model is None or sample is None):
        raise click.UsageError(f"--to {to} needs --model and --input")
    output = output or f"model.{FORMATS[to].ending}"
    x = None if sample is None else _samples(*sample)
    made = None if model is None else make_model(model)
    try:
        said = export(snapshot, output, to, made, x)
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    console.say(f"written to {output}: {said}")


def _samples(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=(4, *shape)).astype(dtype)
    return np.zeros((4, *shape), dtype)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--prefix", help="Start of the model's keys, if the file has several models."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File for the model alone, which pipeline.import_npz reads.",
)
@options.speaking
def import_command(file: str, prefix: str | None, output: str | None) -> None:
    """Shows the contents of a file of save_npz, or of Chainer's trainer snapshot.

    pipeline.import_npz reads such files into stages, with the optimizer's state.
    """
    with opened(file) as arrays:
        groups = Counter(_group(key) for key in arrays)
        for group, n in groups.items():
            console.say(f"{group:<40}{n:>6} {'array' if n == 1 else 'arrays'}")
        found = model_prefix(arrays, prefix, file)
        layers = {key[len(found) :]: key for key in arrays if key.startswith(found)}
        layers = {
            key: full for key, full in layers.items() if position(key) is not None
        }
        where = f"below {found}" if found else "at the top"
        console.say(f"layers {where}:" if layers else "no layers by position")
        for key, full in sorted(layers.items(), key=lambda each: _order(each[0])):
            array = arrays[full]
            shape = " x ".join(map(str, array.shape)) or "a number"
            console.say(f"  {key:<38}{shape:>20}  {array.dtype}")
        if output is not None:
            if not layers:
                raise click.ClickException(f"{file} has no layers to write")
            with written_aside(output) as aside, open(aside, "wb") as target:
                np.savez(target, **{key: arrays[full] for key, full in layers.items()})
            console.say(f"written to {output}")


def _group(key: str) -> str:
    """Returns the part of a trainer's snapshot that a key belongs to."""
    parts = key.split("/")
    if parts[0] in ("updater", "extensions") and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0] if len(parts) > 1 and position(key) is None else "/".join(parts[:1])


def _order(key: str) -> tuple[int, str]:
    return position(key), key
