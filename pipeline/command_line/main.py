"""The command ``divisible``: profile, plan, simulate and look at timelines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from divisible import __version__
from divisible.planning.machine import Network
from divisible.planning.partition import METHODS, partition
from divisible.planning.plan import Plan
from divisible.planning.prediction import predict
from divisible.planning.profile import Profile
from divisible.planning.search import best_plan
from divisible.planning.tables import (
    PLAN_COLUMNS,
    PROFILE_COLUMNS,
    plan_rows,
    profile_rows,
)
from divisible.planning.units import count, format_bytes, format_seconds
from divisible.schedules.catalogue import NAMES, ONE_PER_RANK, TRIED_BY_DEFAULT
from divisible.schedules.recomputation import CHECKPOINTS
from divisible.schedules.timeline import Timeline
from pipeline.command_line.console import (
    plain_warnings,
    print_table,
    say,
    show_progress,
)
from pipeline.command_line.options import (
    FILE,
    Parsed,
    batch,
    machine,
    memory_sizes,
    output,
    plot,
    positive,
    positives,
    shape,
    speaking,
)
from pipeline.command_line.snapshots import export_command, repartition_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="divisible")
def main() -> None:
    """Plans pipeline-parallel training: measures, cuts, predicts, shows.

    \b
    divisible profile models/vgg16.py:VGG16 --input 3x32x32 --batch 84,21,5
    divisible plan profile-*.json --ranks 8 --memory 4GiB --bandwidth 1Gbit/s
    divisible simulate plan.json profile-*.json --plot step.png
    divisible repartition result/snapshot_epoch_3 --stages 8
    """  # noqa: D301


main.add_command(repartition_command)
main.add_command(export_command)


@main.command("profile")
@click.argument("model", metavar="MODULE:MODEL")
@click.option(
    "--input",
    "inputs",
    type=Parsed("shape", shape),
    multiple=True,
    required=True,
    help="Shape of a sample, such as 3x224x224, or 35:int32 with a dtype; once for"
    " each input of the model.",
)
@click.option(
    "--batch",
    type=Parsed("samples,...", positives),
    required=True,
    help="Samples of a microbatch. Several make a profile of each.",
)
@click.option(
    "--loss/--no-loss",
    default=True,
    help="Whether softmax cross entropy follows the model.  [default: loss]",
)
@click.option("--optimizer", help="One of chainer.optimizers, such as MomentumSGD.")
@click.option(
    "--repeat",
    type=Parsed("number", positive),
    default=5,
    show_default=True,
    help="Runs of each.",
)
@click.option("--device", default="@numpy", show_default=True, help="As in Chainer.")
@output("profile.json")
@plot
@speaking
def profile_command(
    model, inputs, batch, loss, optimizer, repeat, device, output, plot
) -> None:
    """Measures what each layer of a model costs.

    MODEL is a subclass of Divisible, a function that makes a model, or a model, in a
    module or a file: models.vgg16:VGG16, models/vgg16.py:VGG16,
    'mlp.py:MLP(1000, n_layers=8)'. The inputs are random numbers, or zeros where they
    are integers.

    With several sizes of batch, the files are named after them: profile-84.json.
    """
    import chainer

    from divisible.planning.measuring import profile
    from pipeline.command_line.model_argument import make_model

    with _blaming(model):
        made = make_model(model)
    with _blaming(f"--device {device}"):
        made.to_device(device)
    if optimizer is not None:
        known = getattr(chainer.optimizers, optimizer, None)
        if not (isinstance(known, type) and issubclass(known, chainer.GradientMethod)):
            raise ValueError(f"there is no optimizer {optimizer!r} in Chainer")
        optimizer = known()
    random = np.random.RandomState(0)
    for size in batch:
        x = tuple(_sample(random, (size, *shape), dtype) for shape, dtype in inputs)
        t = np.zeros(size, np.int32) if loss else None
        hint = ". If it is the loss that does not fit: --no-loss" if loss else ""
        what = f"measuring {size} samples"
        with _blaming(model, hint), plain_warnings(), show_progress(what) as progress:
            measured = profile(
                made, x, t, optimizer=optimizer, repeat=repeat, progress=progress
            )
        say(f"{model}, {size} samples, {measured.machine}")
        print_table(PROFILE_COLUMNS, profile_rows(measured), left=(1,))
        measured.save(_numbered(output, size, batch))
        say(f"written to {_numbered(output, size, batch)}")
        if plot is not None:
            from divisible.planning.plots import plot_profile

            plot_profile(measured, _numbered(plot, size, batch), title=model)
            say(f"drawn to {_numbered(plot, size, batch)}")


@contextlib.contextmanager
def _blaming(whom: str, hint: str = "") -> Iterator[None]:
    """Says without a traceback what went wrong in what the user has named.

    Args:
        whom: What that is.
        hint: What it may be if it is none of the layers.
    """
    try:
        yield
    except Exception as error:
        position = getattr(error, "layer_position", None)
        if isinstance(error, ValueError) and position is None and not hint:
            # Of our own, about a name or a number: it says enough.
            raise
        where = ""
        if position is not None:
            where, hint = f", layer {position}", ""
        raise ValueError(
            f"{whom}{where}: {type(error).__name__}: {str(error).strip()}{hint}"
        ) from error


def _sample(random: np.random.RandomState, shape: tuple, dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind != "f":
        return np.zeros(shape, dtype)
    return random.standard_normal(shape).astype(dtype)


def _numbered(path: str, size: int, sizes: list[int]) -> str:
    stem, ending = os.path.splitext(path)
    return path if len(sizes) == 1 else f"{stem}-{size}{ending}"


@main.command("plan")
@click.argument("profiles", metavar="PROFILE...", nargs=-1, required=True, type=FILE)
@click.option("--ranks", type=Parsed("number", positive), help="Choose everything.")
@click.option("--stages", type=Parsed("number", positive), help="Only cut.")
@click.option(
    "--memory",
    type=memory_sizes(),
    help="Of a rank, such as 8GiB; one for all or one for each.  [default: no limit]",
)
@machine
@batch
@click.option(
    "--microbatches",
    type=Parsed("number,...", positives),
    help="With --ranks those to try, with --stages how many there are.",
)
@click.option(
    "--schedule",
    type=click.Choice(NAMES),
    multiple=True,
    help="With --ranks those to try."
    f"  [default: {', '.join(TRIED_BY_DEFAULT)}; 1f1b to cut]",
)
@click.option(
    "--checkpoint",
    type=click.Choice(CHECKPOINTS),
    multiple=True,
    help="Recomputation; with --ranks those to try.  [default: all; never to cut]",
)
@click.option(
    "--replicas",
    type=Parsed("number", positive),
    default=1,
    help="With --ranks the most pipelines to share a minibatch.  [default: 1]",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="optimal",
    show_default=True,
    help="With --stages, how to cut.",
)
@output("plan.json")
@plot
@speaking
def plan_command(profiles, ranks, stages, memory, output, plot, **options) -> None:
    """Cuts a model, or chooses how to run it altogether.

    With --stages the model is cut so that the slowest stage is as fast as possible,
    for microbatches of the profile's size. With --ranks, stages, microbatches,
    schedule and recomputation are chosen as well, for the whole minibatch; give
    profiles at several sizes of microbatch for that.
    """
    if (ranks is None) == (stages is None):
        raise click.UsageError("give either --ranks or --stages")
    loaded = [Profile.load(path) for path in profiles]
    network = Network(options["bandwidth"], options["latency"], options["overlap"])
    minibatch = options["batch"]
    if ranks is not None:
        plan = _choose(loaded, ranks, memory, network, options)
    else:
        plan = _cut(loaded, stages, memory, network, plot, options)
        minibatch = (plan.n_microbatches or 1) * loaded[0].n_samples
    _print_plan(plan)
    plan.save(output)
    say(f"written to {output}")
    if plot is not None:
        timeline = _simulate(plan, loaded, minibatch, network, options["speeds"])
        _keep(timeline, None, plot)


def _simulate(plan, profiles, batch, network, speeds) -> Timeline:
    """Predicts a minibatch, and says of how many samples it is."""
    if batch is None:
        batch = max(profile.n_samples for profile in profiles)
    say(f"simulated with a minibatch of {count(batch, 'sample')}")
    return predict(plan, profiles, batch=batch, network=network, speeds=speeds)


def _choose(loaded, ranks, memory, network, options) -> Plan:
    if options["method"] != "optimal":
        raise click.UsageError("--method goes with --stages")
    with show_progress("trying combinations") as progress:
        return best_plan(
            loaded,
            ranks,
            memory,
            network,
            batch=options["batch"],
            microbatches=options["microbatches"],
            schedules=options["schedule"] or TRIED_BY_DEFAULT,
            checkpoints=options["checkpoint"] or CHECKPOINTS,
            max_replicas=options["replicas"],
            speeds=options["speeds"],
            progress=progress,
        )


def _cut(loaded, stages, memory, network, plot, options) -> Plan:
    for name in ("microbatches", "schedule", "checkpoint"):
        if options[name] is not None and len(options[name]) > 1:
            raise click.UsageError(f"with --stages there is one --{name}")
    if options["batch"] is not None or options["replicas"] != 1:
        raise click.UsageError(
            "--batch and --replicas go with --ranks; with --stages the profile is at"
            " the size of a microbatch"
        )
    if len(loaded) > 1:
        raise click.UsageError("--stages takes one profile, at the size of microbatch")
    if not set(options["schedule"]) <= set(ONE_PER_RANK):
        raise click.UsageError(
            "--stages cuts for one stage on each rank, so for"
            f" {', '.join(ONE_PER_RANK)}; --ranks chooses among the other schedules as"
            " well"
        )
    if plot is not None and options["microbatches"] is None:
        raise click.UsageError(
            "--plot with --stages needs --microbatches: how many a minibatch has"
        )
    return partition(
        loaded[0],
        stages,
        method=options["method"],
        speeds=options["speeds"],
        memory=memory,
        network=network,
        schedule=(*options["schedule"], "1f1b")[0],
        n_microbatches=(options["microbatches"] or [None])[0],
        checkpoint=(*options["checkpoint"], "never")[0],
    )


@main.command("simulate")
@click.argument("plan", type=FILE)
@click.argument("profiles", metavar="PROFILE...", nargs=-1, required=True, type=FILE)
@machine
@batch
@click.option("--microbatches", type=Parsed("number", positive), help="Not the plan's.")
@click.option("--schedule", type=click.Choice(NAMES), help="Another than the plan's.")
@click.option(
    "--checkpoint", type=click.Choice(CHECKPOINTS), help="Not that of the plan."
)
@click.option("-o", "--output", type=click.Path(), help="Keep the timeline (.json).")
@plot
@speaking
def simulate_command(
    plan, profiles, batch, microbatches, schedule, checkpoint, output, plot, **options
) -> None:
    """Predicts one minibatch of a plan: time, bubble and memory of each rank.

    A plan does not say of how many samples a minibatch is; --batch does.
    """
    chosen = Plan.load(plan)
    changes = {
        "n_microbatches": microbatches,
        "schedule": schedule,
        "checkpoint": checkpoint,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    chosen = replace(chosen, step_seconds=None, **changes)
    loaded = [Profile.load(path) for path in profiles]
    network = Network(options["bandwidth"], options["latency"], options["overlap"])
    say(chosen.headline)
    timeline = _simulate(chosen, loaded, batch, network, options["speeds"])
    _print_timeline(timeline)
    _keep(timeline, output, plot)


@main.command("timeline")
@click.argument("file", type=FILE)
@plot
@speaking
def timeline_command(file, plot) -> None:
    """Shows a timeline that was saved: what every rank did, and for how long.

    FILE comes from Timeline.save, measured (Pipeline.timeline) or predicted. It can
    be opened in chrome://tracing as well.
    """
    timeline = Timeline.load(file)
    _print_timeline(timeline)
    _keep(timeline, None, plot)


def _keep(timeline: Timeline, output: str | None, plot: str | None) -> None:
    if output is not None:
        timeline.save(output)
        say(f"written to {output}")
    if plot is not None:
        timeline.plot(plot)
        say(f"drawn to {plot}")


def _print_plan(plan: Plan) -> None:
    say(plan.headline)
    print_table(PLAN_COLUMNS, plan_rows(plan))
    if plan.alternatives:
        rows = [
            (
                other.name,
                "" if np.isinf(other.seconds) else format_seconds(other.seconds),
                other.reason,
            )
            for other in plan.alternatives
        ]
        print_table(("not chosen", "step", "because"), rows, left=(0, 2), wrap=2)


def _print_timeline(timeline: Timeline) -> None:
    say(f"{timeline.name}: {format_seconds(timeline.makespan)}")
    memory = timeline.peak_memory
    columns = ["rank", "computes", "bubble", "in flight"]
    rows = [
        [str(rank), format_seconds(busy), f"{bubble:.1%}", str(peak)]
        for rank, (busy, bubble, peak) in enumerate(
            zip(timeline.busy, timeline.bubble, timeline.peak_in_flight)
        )
    ]
    if memory is not None:
        columns.append("memory")
        for row, size in zip(rows, memory):
            row.append(format_bytes(size))
    print_table(columns, rows)


if __name__ == "__main__":
    main(prog_name=Path(sys.argv[0]).stem)
