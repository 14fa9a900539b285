"""Options that end all ranks if they are wrong, and arguments of a pipeline by them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from data import Images
from mpi4py import MPI

from divisible import Divisible, Plan, partition, profile
from divisible.communication.aborting import (
    end_all_ranks,
    is_world_up,
    let_lower_ranks_speak,
)
from divisible.schedules import Schedule
from divisible.schedules.catalogue import CATALOGUE
from divisible.schedules.recomputation import RECOMPUTATIONS
from divisible.schedules.schedule_files import schedule_argument
from pipeline import SnapshotError

comm = MPI.COMM_WORLD
AUTO = "auto"
#: Samples of a minibatch, where neither an option nor a plan has a number.
BATCHSIZE = 64


class Parser(argparse.ArgumentParser):
    """Reads options; an error in them ends all ranks and is printed once."""

    def __init__(self, description: str) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def _print_message(self, message, file=None):
        # Every rank is asked for the help, but one rank prints it.
        if comm.rank == 0:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Prints an error from the rank that finds it, and ends all ranks."""
        if not is_world_up():
            super().error(message)
        text = f"{self.format_usage()}{self.prog}: error: {message}\n"
        let_lower_ranks_speak()
        end_all_ranks("exits with 2", lambda: sys.stderr.write(text), code=2)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Prints errors of the options without a traceback, and ends all ranks."""
        try:
            yield
        except (OSError, SnapshotError, ValueError) as error:
            self.error(str(error))

    def add_pipeline_arguments(self) -> None:
        """Adds the options that do not depend on model and data."""
        add = self.add_argument
        add("--epoch", type=int, default=15, help="number of epochs")
        add(
            "--batchsize",
            type=int,
            help="samples of a minibatch; default: as many as the plan is for, or 64",
        )
        add("--microbatches", type=int, default=4, help="microbatches of a minibatch")
        add(
            "--schedule",
            type=schedule_argument,
            default="1f1b",
            metavar="SCHEDULE",
            help="a name of divisible.schedules.NAMES, or a file with the text of a"
            " schedule, which has microbatches of its own",
        )
        add(
            "--recompute",
            choices=RECOMPUTATIONS,
            default="never",
            help="microbatches whose activations are computed again for the backward",
        )
        add(
            "--message-dtype",
            type=dtypes,
            help="dtype of messages between stages, such as int8, or two of them, such"
            " as int8,bf16 for activations and gradients; with --plan auto only where"
            " that is faster; default: their own",
        )
        add(
            "--cuts",
            type=cuts,
            help="positions to cut at, such as 7,15,26 for 4 ranks; auto: measure the"
            " layers first, for stages of equal time; default: stages of equally many"
            " layers",
        )
        add(
            "--plan",
            help="file of a plan, made by divisible plan; it has all these; auto:"
            " measure the layers, and plan for these ranks",
        )
        add("--seed", type=int, default=0, help="seed of weights, dropout, order")

    def check_positive(self, args: argparse.Namespace, *names: str) -> None:
        """Refuses numbers below 1, and a seed out of range."""
        for name in names:
            if getattr(args, name) is not None and getattr(args, name) < 1:
                self.error(f"--{name} must be 1 at least, not {getattr(args, name)}")
        if not 0 <= args.seed < 2**32:
            self.error(f"--seed must be from 0 to 2**32 - 1, not {args.seed}")

    def check_installed(self, **needed: str) -> None:
        """Ends all ranks if packages are missing.

        Args:
            needed: Reason why a module is needed, by the module's name.
        """
        for module, words in needed.items():
            if importlib.util.find_spec(module) is None:
                self.error(f"{words}: pip install 'divisible[examples]'")


def integers(text: str) -> list[int]:
    """Reads integers that are separated by commas."""
    return [int(number) for number in text.split(",")]


def say(line: str) -> None:
    """Prints a line on one rank only."""
    if comm.rank == 0:
        print(line, flush=True)


def dtypes(text: str) -> str | list[str]:
    """Reads the name of a dtype, or two names that are separated by a comma."""
    return text.split(",") if "," in text else text


def cuts(text: str) -> list[int] | str:
    """Reads positions that are separated by commas, or ``auto``."""
    return text if text == "auto" else integers(text)


def planned(
    args: argparse.Namespace, model: Divisible, train: Images
) -> dict[str, Any]:
    """Returns the arguments of a pipeline that have the cuts, and how to run.

    Args:
        args: The options. The number of samples in a plan replaces that of the options.
        model: The undivided model.
        train: Samples to measure the layers with.

    Raises:
        OSError: If the file of the plan does not exist.
        ValueError: If the model cannot be cut like this.
    """
    if args.plan == AUTO:
        n = args.batchsize = args.batchsize or BATCHSIZE
        first = {"x": train.x[:n], "t": train.t[:n]}
        return {"plan": AUTO, "directory": args.out, **first}
    if args.plan is not None:
        plan = Plan.load(args.plan)
        plan.check(model, comm.size)
        args.batchsize = args.batchsize or plan.batch or BATCHSIZE
        if plan.conditions is not None:
            say(f"{args.plan} is for {plan.conditions}")
        if plan.n_microbatches is None:
            plan = replace(plan, n_microbatches=args.microbatches)
        return {"plan": plan}
    args.batchsize = args.batchsize or BATCHSIZE
    own = args.schedule if isinstance(args.schedule, Schedule) else None
    if own is None:
        per_rank = CATALOGUE[args.schedule].stages_per_rank
    else:
        per_rank = max(1, own.n_stages // comm.size)
        args.microbatches = own.n_microbatches
    plan = Plan(
        cut(args, model, train, per_rank * comm.size).cuts,
        n_microbatches=args.microbatches,
        schedule=args.schedule if own is None else None,
        recompute=args.recompute,
        stages_per_rank=per_rank,
    )
    return {"plan": plan} if own is None else {"plan": plan, "schedule": own}


def cut(
    args: argparse.Namespace, model: Divisible, train: Images, n_stages: int
) -> Plan:
    """Returns the cuts of the options, or those of stages of equally many layers.

    Raises:
        ValueError: If the model cannot be cut like this.
    """
    if args.cuts is None or args.cuts == AUTO:
        plan = Plan.uniform(len(model), n_stages)
        if args.cuts == AUTO and comm.rank == 0:
            # Costs of one microbatch in each layer.
            n = -(-args.batchsize // args.microbatches)
            costs = profile(model, train.x[:n], train.t[:n])
            plan = Plan(partition(costs, n_stages).cuts)
        # A rank that waits in a broadcast spins, and takes time from the layers that
        # rank 0 measures, if they share a core.
        measured = comm.Ibarrier()
        while not measured.Test():
            time.sleep(0.02)
        return comm.bcast(plan)
    plan = Plan([0, *args.cuts, len(model)])
    if plan.n_stages != n_stages:
        name = getattr(args.schedule, "name", args.schedule)
        raise ValueError(
            f"--cuts makes {plan.n_stages} stages, but {name} on {comm.size}"
            f" ranks has {n_stages}; there must be one cut less than there are stages"
        )
    return plan
