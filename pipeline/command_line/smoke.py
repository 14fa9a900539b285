"""The command ``divisible smoke``."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from divisible.communication.launchers import is_one_of_several, mpiexec
from divisible.files import written_aside
from pipeline.command_line import console, options
from pipeline.supervision.hosts import Host, read_hosts
from pipeline.supervision.launching import Job, Placement

# Seconds of a measurement, beside those that a rank may wait for another one.
_SECONDS = 60.0
# Seconds in which a host must answer by itself.
_SECONDS_OF_A_HOST = 15.0
_AS_RANK = "--as-rank"
# Exit code of ranks that have measured hosts of which some fail; launchers have others.
_MEASURED = 3
# Begin of the last line of ranks that have measured hosts, none of which fails.
_PASS = "PASS: "


@click.command("smoke")
@click.option("-n", "n_ranks", type=options.NUMBER, help="Number of ranks.")
@click.option(
    "--hosts",
    metavar="HOSTS",
    help="Hosts for the launcher: a list such as a,b or a:2,b:2, with the number of"
    " ranks that each may run, or a file with a host on each line.",
)
@click.option(
    "--launcher",
    metavar="COMMAND",
    help="Launcher and its options, such as 'srun' or 'mpiexec -f hosts.txt'."
    "  [default: mpiexec]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=30.0,
    show_default=True,
    help="Seconds to wait for a rank that does not answer.",
)
@options.output("machine.json")
@click.option(
    "--hosts-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write, of the hosts that passed: mpiexec -f FILE for MPICH,"
    " --hostfile FILE for Open MPI.",
)
@click.option(_AS_RANK, "is_rank", is_flag=True, hidden=True)
@options.speaking
def smoke_command(
    n_ranks: int | None,
    hosts: str | None,
    launcher: str | None,
    timeout: float,
    output: str,
    hosts_file: Path | None,
    is_rank: bool,
) -> None:
    """Measures hosts and links before a run, and says which of them are fit for it.

    \b
    divisible smoke -n 4 --hosts a,b,c,d
    mpiexec -n 4 divisible smoke

    The measurement takes some 20 seconds. All ranks compute products of matrices at the
    same time, by kernels and by Chainer, and copy arrays. The command also measures the
    share of a core that a thread gets, free memory, /dev/shm and the disk of temporary
    files. Links between neighbouring ranks are measured by their latency and bandwidth.
    Versions, clocks and threads are compared. A host that is far below the others, or
    has too little, fails, with a sentence about what to do.

    The machine goes to a file that divisible plan --machine and Machine.load read. The
    exit code is 1 if a host fails.
    """  # noqa: D301
    if is_rank or is_one_of_several():
        if not is_rank and (n_ranks or hosts or launcher):
            raise click.UsageError(
                "a launcher has started this process with others: leave out -n, --hosts"
                " and --launcher, or the launcher before divisible"
            )
        has_passed = _measure(timeout, output, hosts_file)
        sys.exit(0 if has_passed else _MEASURED if is_rank else 1)
    if n_ranks is None and not hosts:
        raise click.UsageError("give the number of ranks as -n, or --hosts")
    _check_folders(output, hosts_file)
    placement = _placement(read_hosts(hosts) if hosts else [], n_ranks)
    sys.exit(_launch(launcher, placement, timeout, output, hosts_file))


def _check_folders(*paths: str | Path | None) -> None:
    """Refuses files that cannot be written, before the measurement."""
    for path in filter(None, paths):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.access(folder, os.W_OK):
            raise ValueError(f"{path}: files cannot be written to the folder {folder}")


def _measure(timeout: float, output: str, hosts_file: Path | None) -> bool:
    """Measures on this rank, and returns on rank 0 whether all hosts passed."""
    # These modules start MPI, which the other commands do not need.
    from mpi4py import MPI

    from pipeline.smoke import results
    from pipeline.smoke.judging import judge
    from pipeline.smoke.on_ranks import measure

    comm = MPI.COMM_WORLD
    try:
        if comm.rank == 0:
            _check_folders(output, hosts_file)
        found = measure(comm, timeout)
    except BaseException as error:
        # The others wait for this rank.
        print(
            f"divisible smoke: rank {comm.rank}: {error}", file=sys.stderr, flush=True
        )
        comm.Abort(1)
        raise
    verdicts = judge(*found)
    has_passed = all(verdict.passed for verdict in verdicts)
    if comm.rank:
        return True
    library = MPI.Get_library_version()
    console.say_wrapped(found.ranks[0].versions["MPI"])
    console.print_table(
        results.HOST_COLUMNS, results.host_rows(verdicts), left=(0, 1, 2)
    )
    console.say("")
    if found.links:
        rows = results.link_rows(*found)
        console.print_table(results.LINK_COLUMNS, rows, left=(0, 1))
        console.say("")
    for line in results.lines(verdicts):
        console.say_wrapped(line)
    passed = results.passed_hosts(verdicts)
    if passed:
        console.say_wrapped(f"hosts that passed: {','.join(passed)}")
    if hosts_file is not None:
        with written_aside(hosts_file) as aside:
            Path(aside).write_text(results.hosts_file(verdicts, library))
        console.say(f"hosts that passed are written to {hosts_file}")
    if found.links or len(found.ranks) == 1:
        machine = results.machine_of(*found)
        machine.save(output, about=results.as_json(verdicts, found.links))
        console.say(f"written to {output}")
        console.say_wrapped(str(machine))
    word = _PASS if has_passed else "FAIL: "
    console.say(f"{word}{len(passed)} of {len(verdicts)}")
    return has_passed


def _placement(hosts: Sequence[Host], n_ranks: int | None) -> Placement:
    """Deals ranks to hosts in turn, so that each host has one at least."""
    if not hosts:
        return Placement((Host("", n_ranks),))
    most = [host.slots or n_ranks or 1 for host in hosts]
    n_ranks = n_ranks or sum(most)
    if not len(hosts) <= n_ranks <= sum(most):
        raise click.UsageError(
            f"-n {n_ranks} is not from {len(hosts)}, one for each host, to the"
            f" {sum(most)} ranks that --hosts may run"
        )
    turns = (
        place for turn in itertools.count() for place, n in enumerate(most) if turn < n
    )
    dealt = [*itertools.islice(turns, n_ranks)]
    return Placement(
        tuple(host._replace(slots=dealt.count(i)) for i, host in enumerate(hosts))
    )


def _launch(
    launcher: str | None,
    placement: Placement,
    timeout: float,
    output: str,
    hosts_file: Path | None,
) -> int:
    """Starts the ranks, and returns the exit code."""
    from pipeline.smoke.launching import run, silent_hosts

    arguments = ["--timeout", str(timeout), "-o", os.path.abspath(output)]
    if hosts_file is not None:
        arguments += ["--hosts-file", str(hosts_file.absolute())]
    words = shlex.split(launcher or "") or [mpiexec()]
    program = sys.executable, "-c", "import divisible_command; divisible_command.main()"
    ranks = Job(words, [*program, "smoke", _AS_RANK, *arguments])
    code, printed = run(ranks.command(placement), _SECONDS + 2 * timeout)
    if code == 0 and _PASS in printed:
        return 0
    if code == _MEASURED:
        return 1
    hosts = [] if placement.is_free else placement.hosts
    idle = Job(words, ["true"])
    silent = silent_hosts(
        {host.name: idle.command(Placement((Host(host.name, 1),))) for host in hosts},
        _SECONDS_OF_A_HOST,
    )
    for host, reason in silent.items():
        console.say_wrapped(
            f"FAIL {host}: the launcher starts nothing there ({reason}). Try ssh {host}"
            f" true, and leave the host out until it answers"
        )
    ended = "were ended at the deadline" if code is None else f"ended with code {code}"
    known = "" if silent or not hosts else "; each host alone answers"
    if code == 0:
        ended += " and measured nothing"
    console.say_wrapped(f"FAIL: the ranks {ended}{known}. What they printed is above")
    return 1
