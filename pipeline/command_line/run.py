"""``divisible run``: a training script on this rank."""

from __future__ import annotations

import os

import click

from chainer_compat import _modes


@click.command(
    "run",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    },
)
@click.option(
    "--plan",
    type=click.Path(dir_okay=False),
    help="File of a plan, for a script that says plan='auto'; rank 0 reads it.",
)
@click.option(
    "--compat",
    metavar="MODES",
    default=_modes.DEFAULT,
    show_default=True,
    help="Help for old scripts: names, cupy, or '' for none. Code of Chainer 1 needs"
    " CHAINER_COMPAT=chainer1 in the environment.",
)
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(
    plan: str | None, compat: str, script: str, arguments: tuple[str, ...]
) -> None:
    """Runs a training script so that all ranks end when one does.

    \b
    mpiexec -n 4 divisible run train.py --epoch 20
    mpiexec -n 4 divisible run --plan plan.json train.py --epoch 20

    ARGUMENTS are the arguments of SCRIPT. It runs as "python SCRIPT" would run it, with
    four differences. All ranks end if one does: by an exception in any thread, by
    sys.exit with a code other than 0, or by SIGUSR1 if SCRIPT has no handler for it.
    The exit code is 75 after StopOnSignal has stopped the training. And no file beside
    SCRIPT hides the packages of this project, as a pipeline.py would hide them from
    "python -m pipeline SCRIPT". Names that NumPy and Python removed come back when
    SCRIPT uses one, and so do former names of CuPy's modules.
    """  # noqa: D301
    try:
        _modes.enable(compat)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--compat") from None
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    # These modules start MPI, which the other commands do not need.
    from pipeline.scripts import run_script
    from pipeline.start.plan_choice import VARIABLE

    if plan is not None:
        # The script may change its directory.
        os.environ[VARIABLE] = os.path.abspath(plan)
    run_script([script, *arguments])
