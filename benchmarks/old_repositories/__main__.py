"""Runs the programs, compares their losses and writes the table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.old_repositories import comparing
from benchmarks.old_repositories.arguments import (
    found_in,
    is_chosen,
    parser_of,
    write_left_out,
)
from benchmarks.old_repositories.environments import environment
from benchmarks.old_repositories.made_up import data_sets
from benchmarks.old_repositories.program import Program
from benchmarks.old_repositories.programs import PROGRAMS
from benchmarks.old_repositories.rows import STOPPED, Row, read
from benchmarks.old_repositories.trial import Run, Way, run

#: Ways that are tried in turn, until a program runs.
WAYS = (Way(), Way(modes="names,cupy"), Way(modes="names,cupy,cpu"))
CHAINER_1 = (
    Way(),
    Way(modes="names,cupy,chainer1"),
    Way(modes="names,cupy,chainer1,cpu"),
)


class Places(NamedTuple):
    """Folders.

    Attributes:
        trees: Source trees of the repositories.
        data_sets: Chainer's data sets.
        environments: An environment for each repository.
    """

    trees: Path
    data_sets: Path
    environments: Path


class Found(NamedTuple):
    """How a program ran.

    Attributes:
        words: Help that it needed, or the error that stopped it.
        run: Its run with kernels, or its last failure.
        way: How.
        python: The interpreter of its environment.
    """

    words: str
    run: Run
    way: Way
    python: Path


def first_way(program: Program, places: Places, seconds: float) -> Found:
    """Runs a program with more and more help, until it trains."""
    numpy = [each for each in program.needs if each.startswith("numpy")]
    needs = tuple(each for each in program.needs if each not in numpy)
    python, failure = environment(places.environments, needs, seconds)
    done = Run([], [], failure, failure)
    if failure:
        return Found(f"{STOPPED}: {failure}", done, WAYS[0], python)
    ways = list(CHAINER_1 if program.is_chainer_1 else WAYS)
    if program.change:
        ways.append(ways[-1]._replace(change=True))
    tried = [(way, python, "") for way in ways]
    if numpy:
        older, failure = environment(places.environments, program.needs, seconds)
        if not failure:
            condition = numpy[0].removeprefix("numpy")
            tried += [(way, older, condition) for way in ways]
    for way, interpreter, version in tried:
        done = run(program, places.trees, interpreter, places.data_sets, way)
        if not done.failure:
            words = comparing.help_needed(program, way, version)
            return Found(words, done, way, interpreter)
    return Found(f"{STOPPED}: {done.failure}", done, way, python)


def compared(
    program: Program, found: Found, places: Places, rounds: int
) -> tuple[str, str]:
    """Returns how the losses agree with those without kernels, and the times."""

    def again(**changes) -> Run:
        way = found.way._replace(**changes)
        return run(program, places.trees, found.python, places.data_sets, way)

    without = again(kernels=False)
    apart, nudged = comparing.difference(found.run, without), None
    if apart > comparing.ROUNDING:
        nudged = 0.0
        for draw in range(comparing.DRAWS):
            other = again(kernels=False, nudge=comparing.LAST_BITS, draw=draw)
            if not other.failure:
                nudged = max(nudged, comparing.difference(other, without))
            if apart <= comparing.FACTOR * nudged:
                break
    times = ""
    if rounds:
        ours, stock = [], []
        for _ in range(rounds):
            ours.append(comparing.seconds_of_step(again()))
            stock.append(comparing.seconds_of_step(again(kernels=False)))
        times = f"{min(stock):.4f} {min(ours):.4f} {ratios(ours, stock)}"
    return comparing.agreement(apart, nudged), times


def main() -> None:
    """Runs all programs and writes the result."""
    parser = parser_of(__doc__, "programs")
    add = parser.add_argument
    add("--kinds", nargs="*", default=[], help="kinds of networks")
    add("--rounds", type=int, default=3, help="timed runs of each, in turn")
    add("--no-timing", action="store_true", help="compare losses alone")
    add(
        "--rows",
        nargs="*",
        type=Path,
        default=[],
        metavar="FILE",
        help="results whose rows are kept, of programs that are not run now",
    )
    arguments = parser.parse_args()
    # One of them may be the file that is written.
    kept = [read(each.read_text(), PROGRAMS) for each in arguments.rows]
    wanted = chosen(arguments.only, arguments.kinds)
    # A program that no CPU can run has its row without a tree.
    run = [program for program in wanted if not program.beyond]
    there = found_in(run, parser, arguments.trees)
    result = Result("old_repositories", arguments.output)
    result.write(command(), machine("chainer", "numpy"), "")
    if arguments.no_timing:
        result.write("Steps were not timed: losses alone were compared.")
    if kept:
        result.write("Rows of programs that this command did not run are from others.")
    write_left_out(result, run, there)
    head = f"{'repository':44} {'kind':22} {'for':5}"
    words = "ran, losses with kernels against without, seconds of a step"
    result.write("", f"{head} {words}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sets = Path(folder, "data_sets")
        data_sets.write(sets, 60000, 10000)
        places = Places(
            arguments.trees,
            sets,
            arguments.environments or Path(folder, "environments"),
        )
        now = {*there, *(program for program in wanted if program.beyond)}
        for program in PROGRAMS:
            former = [
                each[program.repository] for each in kept if program.repository in each
            ]
            # A program that no CPU can run has its row without a run.
            if program in now or (kept and program.beyond):
                rows.append(row(program, places, arguments))
            elif former:
                rows.append(former[-1])
            else:
                continue
            result.write(str(rows[-1]))
    found = [(each.program, each.words) for each in rows]
    result.write("", *comparing.counts(found))
    result.save()


def chosen(only: list[str], kinds: list[str]) -> list[Program]:
    """Returns the programs whose names have one of these, of these kinds."""
    return [
        program
        for program in PROGRAMS
        if is_chosen(only, program.repository) and (not kinds or program.kind in kinds)
    ]


def row(program: Program, places: Places, arguments) -> Row:
    """Runs a program."""
    if program.beyond:
        return Row(program, program.beyond)
    found = first_way(program, places, arguments.timeout)
    if found.run.failure:
        if arguments.show:
            print(found.run.output)
        return Row(program, found.words)
    rounds = 0 if arguments.no_timing else arguments.rounds
    return Row(program, found.words, *compared(program, found, places, rounds))


if __name__ == "__main__":
    main()
