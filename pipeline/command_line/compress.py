"""The command ``divisible compress``."""

from __future__ import annotations

from typing import Any

import click

from chainer_compat import _modes
from divisible.files import new_figure
from divisible.planning.units import parse_bytes
from pipeline.command_line import console, options


def _size(text: str) -> float:
    """Parses a part below 1, or a number of bytes."""
    try:
        number = float(text)
    except ValueError:
        return parse_bytes(text)
    if not number > 0 or 1 <= number < 2:
        raise ValueError(f"{text} is neither a part below 1 nor a number of bytes")
    return number


def _granularity(text: str) -> Any:
    """Parses a granularity of pruning; a block as ``4x4``."""
    sides = text.split("x")
    if len(sides) == 2 and all(side.isdigit() for side in sides):
        return [int(side) for side in sides]
    return text


def _degrees(text: str) -> list[float]:
    """Parses parts between 0 and 1."""
    return [float(part) for part in text.split(",")]


@click.command("compress")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--budget",
    metavar="METRIC=CHANGE",
    required=True,
    help="How much worse a metric of the evaluator may become: accuracy=-0.5 for half a"
    " point of a percent, loss=+0.02, or loss=+2% for 2 % of the dense model's loss.",
)
@click.option(
    "--bytes",
    "n_bytes",
    type=options.Parsed("size", _size),
    help="Bytes of the weights in the end: a fraction of the dense model's, such as"
    " 0.2, or a size, such as 300KB.  [default: as few as the budget allows]",
)
@click.option(
    "--time",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Fraction of the layers' time in the end, with --granularity channel. It is"
    " computed from the channels that remain.",
)
@click.option(
    "--methods",
    default="magnitude,int8,int4",
    show_default=True,
    help="Methods of pruning and quantization to try.",
)
@click.option(
    "--degrees",
    type=options.Parsed("part,...", _degrees),
    default="0.5,0.7,0.8,0.9,0.95",
    show_default=True,
    help="Parts of a layer's weights to prune.",
)
@click.option(
    "--granularity",
    type=options.Parsed("shape", _granularity),
    default="element",
    show_default=True,
    help="What is pruned together: element, row, channel, or a block such as 4x4.",
)
@click.option(
    "--layers",
    multiple=True,
    default=["*"],
    show_default=True,
    help="Layers to try: a class, a path or a pattern. Give it several times.",
)
@click.option(
    "--rounds",
    type=options.NUMBER,
    default=3,
    show_default=True,
    help="Rounds from the dense model to the smallest one.",
)
@click.option(
    "--tries",
    type=options.NUMBER,
    default=8,
    show_default=True,
    help="Largest number of rounds, with those that are not kept.",
)
@click.option(
    "--epochs", type=float, help="Epochs of a round.  [default: the script's]"
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    default="compressed",
    show_default=True,
    help="Folder of the report, the plan, the weights and the state.",
)
@options.speaking
def compress_command(
    script: str,
    arguments: tuple[str, ...],
    budget: str,
    n_bytes: float | None,
    time: float | None,
    methods: str,
    degrees: list[float] | float,
    granularity: Any,
    layers: tuple[str, ...],
    rounds: int,
    tries: int,
    epochs: float | None,
    output: str,
) -> None:
    """Makes the model of a training script smaller, by trying what it can lose.

    \b
    divisible compress train.py --budget accuracy=-0.5 --bytes 0.2
    mpiexec -n 4 divisible compress train.py --budget loss=+2% -- --epoch 20

    SCRIPT trains by a chainer.training.Trainer with an evaluator, in one process or on
    the ranks of a Pipeline; ARGUMENTS behind -- are its own. It runs several times, and
    stays as it is. The first run trains the dense model. Then each layer, method and
    degree is tried alone, without training. Each further run is a round: it begins with
    the weights of the last round that was kept, and trains with a plan for fewer bytes,
    whose layers lost least. A round that costs more than the budget is not kept, and
    the next one goes half as far.

    The same command continues where it was killed. OUTPUT gets report.txt, report.png,
    plan.json, and the weights of each round that was kept.
    """  # noqa: D301
    from model_compression.budgets import Budget

    Budget.parse(budget)
    if time is not None and granularity != "channel":
        raise click.UsageError(
            "--time needs --granularity channel: zeros and few bits save no time"
        )
    # Before the training, not after it.
    new_figure((1, 1), "drawing the report")
    _modes.enable(_modes.DEFAULT)
    # These modules start MPI.
    from mpi4py import MPI

    from pipeline.compressing.journal import Journal, Settings
    from pipeline.compressing.session import Session
    from pipeline.compressing.taken_trainer import run_until_over
    from pipeline.scripts import run_script

    settings = Settings(
        script=[script, *arguments],
        budget=budget,
        n_bytes=n_bytes,
        time=time,
        methods=methods.split(","),
        degrees=degrees if isinstance(degrees, list) else [degrees],
        granularity=granularity,
        layers=list(layers),
        rounds=rounds,
        tries=tries,
        epochs=epochs,
    )
    session = Session(Journal.begun(output, settings))
    if session.is_over:
        if MPI.COMM_WORLD.rank == 0:
            console.say(session.report())
        return
    run_script([script, *arguments], lambda run: run_until_over(session, run, script))
