"""``divisible run``: a training script on this rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from chainer_compat import _modes
from divisible.communication.launchers import is_one_of_several
from divisible.schedules.catalogue import NAMES
from pipeline.command_line import options
from pipeline.supervision.budget import Budget


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
    help="File of a plan, for a script that says plan='auto'; rank 0 reads it. {ranks}"
    " in its name stands for the number of ranks, as in 'plan-{ranks}.json'.",
)
@click.option(
    "--schedule",
    metavar="SCHEDULE",
    help="Schedule for a script that says schedule='auto': a name, or a file that each"
    " rank reads.",
)
@click.option(
    "--compat",
    metavar="MODES",
    default=_modes.DEFAULT,
    show_default=True,
    help="Help for old scripts: names, cupy, cpu, or '' for none. Code of Chainer 1"
    " needs CHAINER_COMPAT=chainer1 in the environment.",
)
@click.option(
    "--keep-going",
    is_flag=True,
    help="Start the ranks here, by a launcher, and start them again when one is lost.",
)
@click.option(
    "-n",
    "n_ranks",
    type=options.NUMBER,
    help="Number of ranks, with --keep-going.",
)
@click.option(
    "--launcher",
    metavar="COMMAND",
    help="Launcher and its options, with --keep-going, such as 'srun' or 'mpiexec"
    " -hosts a,b'.  [default: mpiexec]",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    help="Number of restarts without progress, with --keep-going; 100 steps in a"
    f" snapshot give one back.  [default: {Budget.most}]",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for a line of JSON about each start and end, with --keep-going.",
)
@click.option(
    "--hosts",
    metavar="HOSTS",
    help="Hosts for the ranks, with --keep-going: a list such as node1:4,node2:4, or a"
    " file with a host on each line. Hosts that the ranks do not need are spare."
    "  [default: with --spares, --shrink or --grow those of a job of Slurm or PBS]",
)
@click.option(
    "--spares",
    metavar="HOSTS",
    help="Hosts that take the place of lost ones, with --keep-going.",
)
@click.option(
    "--shrink",
    is_flag=True,
    help="Start fewer ranks if too few hosts are left, with --keep-going. SCRIPT says"
    " plan='auto', or can train on several numbers of ranks.",
)
@click.option(
    "--grow",
    is_flag=True,
    help="Look once a minute, and on SIGUSR2, whether lost hosts are back, with"
    " --keep-going. If so, the ranks stop with a snapshot, and more of them start.",
)
@click.option(
    "--control",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="RUN",
    help="Directory for 'divisible control RUN', with --keep-going. Rank 0 must see it."
    "  [default: one in the directory for temporary files]",
)
@click.option("--controlled-by", type=click.Path(), hidden=True)
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@options.speaking
def run_command(
    plan: str | None,
    schedule: str | None,
    compat: str,
    keep_going: bool,
    n_ranks: int | None,
    launcher: str | None,
    restarts: int | None,
    log: Path | None,
    controlled_by: str | None,
    script: str,
    arguments: tuple[str, ...],
    **of_hosts: Any,
) -> None:
    """Runs a training script so that all ranks end when one does.

    \b
    mpiexec -n 4 divisible run train.py --epoch 20
    mpiexec -n 4 divisible run --plan plan.json train.py --epoch 20
    mpiexec -n 4 divisible run --schedule mine.txt train.py --epoch 20
    divisible run --keep-going -n 4 train.py --epoch 20

    ARGUMENTS are the arguments of SCRIPT. It runs as "python SCRIPT" would run it, with
    four differences. All ranks end if one does: by an exception in any thread, by
    sys.exit with a code other than 0, or by SIGUSR1 if SCRIPT has no handler for it.
    The exit code is 75 after StopOnSignal has stopped the training. And no file beside
    SCRIPT hides the packages of this project, as a pipeline.py would hide them from
    "python -m pipeline SCRIPT". Names that NumPy and Python removed come back when
    SCRIPT uses one, and so do former names of CuPy's modules.

    With --keep-going, no launcher stands before "divisible". SCRIPT saves snapshots,
    and resumes from the newest one (resume='auto'). If a rank is killed or does not
    answer, the ranks start again, and a line says why. An error of the program that
    comes twice at the same step ends the run, and so does a signal. The line at the
    start names the directory for "divisible control".
    """  # noqa: D301
    try:
        _modes.enable(compat)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--compat") from None
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    if schedule is not None:
        options.NamedSchedule().convert(schedule, None, None)
        # The script may change its directory.
        is_name = schedule in NAMES
        schedule = schedule if is_name else os.path.abspath(schedule)
    if keep_going:
        if is_one_of_several():
            raise click.UsageError(
                "a launcher has started this process with others, but --keep-going"
                " starts the ranks itself: leave out mpiexec before it"
            )
        if n_ranks is None:
            raise click.UsageError("--keep-going needs the number of ranks: give -n")
        from pipeline.command_line.keep_going import Wish, keep_going_with

        options_of_ranks = ["--compat", compat, *(["--plan", plan] if plan else [])]
        options_of_ranks += ["--schedule", schedule] if schedule else []
        wish = Wish(n_ranks, launcher, restarts, log, plan, **of_hosts)
        sys.exit(keep_going_with(wish, options_of_ranks, [script, *arguments]))
    given = [n_ranks, launcher, restarts, log, *of_hosts.values()]
    if any(each not in (None, False) for each in given):
        raise click.UsageError(
            "-n, --launcher, --restarts, --log, --hosts, --spares, --shrink, --grow and"
            " --control need --keep-going"
        )
    # These modules start MPI, which the other commands do not need.
    from pipeline.scripts import run_script
    from pipeline.start import schedule_choice
    from pipeline.start.plan_choice import VARIABLE
    from pipeline.training import control_files

    if controlled_by is not None:
        os.environ[control_files.VARIABLE] = controlled_by
    if schedule is not None:
        os.environ[schedule_choice.VARIABLE] = schedule
    if plan is not None:
        # The script may change its directory.
        os.environ[VARIABLE] = os.path.abspath(plan)
    run_script([script, *arguments])
