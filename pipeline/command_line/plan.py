"""The command ``divisible plan``."""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np

from divisible.communication.wire import WIRE
from divisible.planning.cut_plan import LAYERS, WAYS
from divisible.planning.cuts import METHODS
from divisible.planning.machine import Machine
from divisible.planning.message_plan import message_lines
from divisible.planning.network import Network
from divisible.planning.partition import partition
from divisible.planning.plan import Alternative, Plan
from divisible.planning.plan_simulation import simulate_plan
from divisible.planning.retained_arrays import HOLD_DTYPES
from divisible.planning.search import best_plan
from divisible.planning.tables import PLAN_COLUMNS, plan_rows
from divisible.planning.units import format_seconds, parse_bytes
from divisible.schedules.catalogue import NAMES, ONE_PER_RANK, TRIED_BY_DEFAULT
from divisible.schedules.schedule import Schedule
from pipeline.command_line import console, options
from pipeline.command_line.plan_shapes import show_shapes
from pipeline.command_line.simulate import draw

# Options with several values for --ranks, and the argument that --stages needs.
_OF_A_CUT = {
    "microbatches": "n_microbatches",
    "schedules": "schedule",
    "recompute": "recompute",
}
#: Options that only a choice among plans needs.
_OF_A_CHOICE = {
    "disk": "--disk",
    "weight_groups": "--weight-groups",
    "hold_dtypes": "--hold-dtype",
    "message_dtypes": "--message-dtype",
    "waits": "--no-overlap-minibatches",
}
# Number of alternatives shown without --all.
_SHOWN = 5
#: Options that are of no use without replicas.
_OF_REPLICAS = {
    "exchange_dtype": "--exchange-dtype",
    "error_feedback": "--error-feedback",
}


#: Options that only --shapes needs.
_OF_SHAPES = {"inputs": "--input", "optimizer": "--optimizer"}
# Options that describe a machine.
_OF_A_MACHINE = ("memory", "network", "speeds", "disk")


@click.command("plan")
@options.profiles(required=False)
@click.option(
    "--ranks", type=options.NUMBER, help="Number of ranks: choose the whole plan."
)
@click.option(
    "--stages", type=options.NUMBER, help="Number of stages: only cut the model."
)
@click.option(
    "--memory",
    type=options.Parsed("size,...", parse_bytes, several=True),
    help="Memory of a rank, such as 8GiB: one value for all, or one for each."
    "  [default: no limit]",
)
@options.machine
@click.option(
    "--machine",
    "measured",
    type=options.Loaded(Machine.load),
    help="File of a machine, which divisible smoke writes. Options such as --memory"
    " take precedence.",
)
@click.option(
    "--shapes",
    metavar="MODULE:MODEL",
    help="Instead of a plan, show the memory of this model's layers and ranks, from"
    " shapes alone: no layer runs, and no weight is made. Give --input, --batch.",
)
@options.inputs(required=False)
@options.optimizer
@options.batch("as many samples as the largest profile has")
@click.option(
    "--microbatches",
    type=options.NUMBERS,
    help="Numbers of microbatches to try with --ranks; one number with --stages.",
)
@click.option(
    "--schedule",
    "schedules",
    type=options.NamedSchedule(),
    metavar="SCHEDULE",
    multiple=True,
    help=f"Schedules to try with --ranks: {', '.join(NAMES)}. With --stages one"
    " schedule, a name or a file, as for divisible schedule."
    f"  [default: {', '.join(TRIED_BY_DEFAULT)}; 1f1b with --stages]",
)
@click.option(
    "--recompute",
    type=click.Choice(WAYS),
    multiple=True,
    help="Which microbatches run forward again before their backward, to save memory;"
    " or layers, for those layers that free most for their time. Give several to try"
    " with --ranks.  [default: all; never with --stages]",
)
@click.option(
    "--weight-groups",
    type=options.NUMBERS,
    help="With --ranks, the numbers of microbatches whose weight gradients are one"
    " product to try.  [default: 1, 4 and all, with several profiles]",
)
@click.option(
    "--hold-dtype",
    "hold_dtypes",
    type=click.Choice(HOLD_DTYPES),
    multiple=True,
    help="With --ranks, the dtypes to try in which activations wait for their backward:"
    " give both to allow bfloat16.  [default: float32]",
)
@click.option(
    "--replicas",
    type=options.NUMBER,
    default=1,
    help="With --ranks, the largest number of pipelines that share a minibatch."
    "  [default: 1]",
)
@click.option(
    "--exchange-dtype",
    type=click.Choice(list(WIRE)),
    help="With --replicas, the dtype of exchanged gradients.  [default: fp32]",
)
@click.option(
    "--message-dtype",
    "message_dtypes",
    type=click.Choice(list(WIRE)),
    multiple=True,
    help="With --ranks, a dtype to which messages between stages may be narrowed, where"
    " that is faster than to send them as they are.",
)
@click.option(
    "--error-feedback",
    is_flag=True,
    help="With --replicas, keep in memory what encodings lose, and add it to the next"
    " gradients.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="optimal",
    show_default=True,
    help="With --stages, the method of cutting.",
)
@click.option(
    "--no-overlap-minibatches",
    "waits",
    is_flag=True,
    help="With --ranks, predict steps in which each rank waits for all others, as with"
    " a hook that needs the gradients of all stages.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show all alternatives.")
@options.output("plan.json")
@options.plot
@options.speaking
def plan_command(
    profiles, ranks, stages, shows_all, output, plot, measured, shapes, **given
) -> None:
    """Cuts a model into stages, or chooses everything about a run.

    With --stages, the model is cut so that the slowest stage is as fast as possible,
    for microbatches of the profile's size. With --ranks, the command also chooses the
    number of stages and microbatches, the schedule and the recomputation. With
    --replicas, it chooses as well how many pipelines share a minibatch. Give profiles
    at several sizes of microbatch for --ranks. The file also has the options of the
    machine and the names of the profiles, for the commands that read it.

    With --shapes there is no profile, and no file is written.
    """
    if shapes is not None:
        _refuse_with_shapes(plot, given)
        if profiles or ranks is not None:
            raise click.UsageError("--shapes goes with --stages, without a profile")
        if measured is not None and given["memory"] is None:
            given["memory"] = measured.rank_memory()
        show_shapes(shapes, stages, **given)
        return
    if measured is not None:
        given, ranks = _on_measured(measured, given, ranks, stages)
    given = _with_profiles(profiles, ranks, stages, given)
    schedules = given.get("schedules", ())
    of_files = [each for each in schedules if isinstance(each, Schedule)]
    if stages is not None:
        if plot is not None and not (of_files or "microbatches" in given):
            raise click.UsageError(
                "--plot with --stages needs --microbatches: how many a minibatch has"
            )
        plan = _cut(profiles, stages, given)
    elif of_files:
        raise click.UsageError(
            "--schedule with a file goes with --stages: --ranks tries several numbers"
            " of microbatches, and a file has one"
        )
    else:
        plan = _choose(profiles, ranks, given)
    # Saved before it is printed: "| head" closes the pipe, which ends the command.
    plan.save(output)
    _print_plan(plan, shows_all)
    console.say_wrapped(f"for {plan.conditions}")
    console.say(f"written to {output}")
    if plot is not None:
        own = of_files[0] if of_files else None
        draw(simulate_plan(plan, profiles, schedule=own), plot)
    # The last line stays visible on the terminal, so it is the result.
    console.say_wrapped(plan.headline)


def _refuse_with_shapes(plot, given) -> None:
    """Refuses options that --shapes has no use for."""
    options_of_others = {
        **_OF_A_CHOICE,
        **_OF_REPLICAS,
        "speeds": "--speeds",
        "links": "--bandwidth, --latency, --overlap",
    }
    unused = [option for name, option in options_of_others.items() if given[name]]
    unused += ["--replicas"] * (given["replicas"] > 1)
    unused += ["--method"] * (given["method"] != "optimal")
    unused += ["--plot"] * (plot is not None)
    if unused:
        raise click.UsageError(f"not with --shapes: {', '.join(unused)}")


def _on_measured(measured: Machine, given, ranks, stages) -> tuple:
    """Returns options, and a number of ranks, with those of a machine for the rest."""
    network = {
        name: getattr(measured.network, name)
        for name in ("bandwidth", "latency", "overlap")
    }
    found = {**given, "links": {**network, **given["links"]}}
    for name in ("memory", "speeds", "disk"):
        if found[name] is None:
            found[name] = getattr(measured, name)
    if stages is not None:
        # A disk is for plans that choose whether to use it.
        found["disk"] = given["disk"]
    elif ranks is None:
        ranks = measured.ranks
    wanted = ranks if stages is None else stages
    if wanted > measured.ranks:
        raise click.UsageError(
            f"the file of --machine has {measured.ranks} ranks, fewer than {wanted}"
        )
    return found, ranks


def _with_profiles(profiles, ranks, stages, given) -> dict:
    """Returns the options that were given, and refuses those that do not go together.

    The speeds of links become a network.
    """
    alone = [option for name, option in _OF_SHAPES.items() if given.pop(name)]
    if alone:
        raise click.UsageError(f"{' and '.join(alone)}: only with --shapes")
    if not profiles:
        raise click.UsageError("give a PROFILE, or a model as --shapes")
    if (ranks is None) == (stages is None):
        raise click.UsageError("give either --ranks or --stages")
    found = {name: value for name, value in given.items() if value}
    found["network"] = Network(**found.pop("links", {}))
    if found["replicas"] == 1:
        alone = [option for name, option in _OF_REPLICAS.items() if name in found]
        if alone:
            raise click.UsageError(f"{' and '.join(alone)}: only with --replicas")
    if stages is None and found.pop("method") != "optimal":
        raise click.UsageError("--method goes with --stages")
    return found


def _choose(profiles, ranks, given) -> Plan:
    """Returns the best plan, by options named like best_plan's arguments."""
    given["replicas"] = (1, given["replicas"])
    given["overlap_minibatches"] = not given.pop("waits", False)
    of_machine = {name: given.pop(name) for name in _OF_A_MACHINE if name in given}
    with console.show_progress("trying combinations") as progress:
        return best_plan(
            profiles, Machine(ranks, **of_machine), progress=progress, **given
        )


def _cut(profiles, stages, given) -> Plan:
    """Returns a plan that only cuts, by options named like best_plan's arguments."""
    wrong = []
    if "batch" in given:
        wrong.append("--batch goes with --ranks: here it is what the profile has")
    if given.pop("replicas") != 1:
        wrong.append("--replicas goes with --ranks")
    for name, option in _OF_A_CHOICE.items():
        if name in given:
            wrong.append(f"{option} goes with --ranks")
    if LAYERS in given.get("recompute", ()):
        wrong.append("--recompute layers goes with --ranks")
    if len(profiles) > 1:
        wrong.append(f"there are {len(profiles)} profiles: give one")
    if wrong:
        raise click.UsageError(
            f"--stages cuts for microbatches of one profile's size; {'; '.join(wrong)}"
        )
    if not all(map(_is_one_per_rank, given.get("schedules", ()))):
        raise click.UsageError(
            "--stages cuts for one stage on each rank, so for"
            f" {', '.join(ONE_PER_RANK)}; --ranks chooses among the other schedules as"
            " well"
        )
    for several, one in _OF_A_CUT.items():
        if several in given:
            given[one], *more = given.pop(several)
            if more:
                raise click.UsageError(
                    "with --stages give one --microbatches, one --schedule and one"
                    " --recompute; --ranks tries several"
                )
    return partition(profiles[0], stages, **given)


def _is_one_per_rank(schedule: str | Schedule) -> bool:
    if isinstance(schedule, Schedule):
        return schedule.n_stages == schedule.n_ranks
    return schedule in ONE_PER_RANK


def _print_plan(plan: Plan, shows_all: bool) -> None:
    console.print_table(PLAN_COLUMNS, plan_rows(plan.cuts, plan.stages))
    if plan.exchange is not None:
        console.say(f"exchange of gradients: {plan.exchange}")
    for line in message_lines(plan.messages):
        console.say_wrapped(line)
    if plan.alternatives:
        _print_alternatives(plan.alternatives, shows_all)
    alone = [
        other.seconds
        for other in plan.alternatives
        if other.plan is not None and other.plan.n_ranks == other.plan.replicas == 1
    ]
    if alone and plan.step_seconds:
        times = min(alone) / plan.step_seconds
        console.say(f"one rank would take {times:.2f} times as long")
    if plan.certainty:
        console.say_wrapped(plan.certainty)


def _print_alternatives(alternatives: Sequence[Alternative], shows_all: bool) -> None:
    """Prints the plans that were not chosen, each with its reason below it."""
    shown = alternatives if shows_all else alternatives[:_SHOWN]
    console.say("not chosen, and why:")
    for other in shown:
        seconds = "" if np.isinf(other.seconds) else format_seconds(other.seconds)
        console.say_wrapped(", ".join(filter(None, (other.name, seconds))), indent=2)
        console.say_wrapped(other.reason, indent=6)
    more = len(alternatives) - len(shown)
    if more:
        console.say(f"  and {more} more: --all shows them")
