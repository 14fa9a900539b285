"""The command ``divisible smoke``."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from divisible.communication.launchers import is_one_of_several, mpiexec
from divisible.files import written_aside
from pipeline.command_line import console, options

# Seconds of a measurement, beside those that a rank may wait for another one.
_SECONDS = 60.0
# Seconds in which a host must answer by itself.
_SECONDS_OF_A_HOST = 15.0
_AS_RANK = "--as-rank"
# Exit code of ranks that have measured hosts of which some fail; launchers have others.
_MEASURED = 3


@click.command("smoke")
@click.option("-n", "n_ranks", type=options.NUMBER, help="Number of ranks.")
@click.option(
    "--hosts",
    metavar="HOST,...",
    help="Hosts for the launcher, with commas between, such as a,b or a:2,b:2.",
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
    files, and the latency and bandwidth of links between neighbouring ranks. Versions,
    clocks and threads are compared. A host that is far below the others, or has too
    little, fails, with a sentence about what to do.

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
    names = [name.strip() for name in hosts.split(",")] if hosts else []
    if not all(names):
        raise click.UsageError(f"--hosts {hosts!r} has a name that is empty")
    if n_ranks is None and not names:
        raise click.UsageError("give the number of ranks as -n, or --hosts")
    sys.exit(_launch(launcher, names, n_ranks, timeout, output, hosts_file))


def _measure(timeout: float, output: str, hosts_file: Path | None) -> bool:
    """Measures on this rank, and returns on rank 0 whether all hosts passed."""
    # These modules start MPI, which the other commands do not need.
    from mpi4py import MPI

    from pipeline.smoke import results
    from pipeline.smoke.judging import judge
    from pipeline.smoke.on_ranks import measure

    comm = MPI.COMM_WORLD
    try:
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
    console.say(f"{'PASS' if has_passed else 'FAIL'}: {len(passed)} of {len(verdicts)}")
    return has_passed


def _launch(
    launcher: str | None,
    hosts: list[str],
    n_ranks: int | None,
    timeout: float,
    output: str,
    hosts_file: Path | None,
) -> int:
    """Starts the ranks, and returns the exit code."""
    from pipeline.smoke.launching import n_slots, on_hosts, run, silent_hosts

    command = shlex.split(launcher) if launcher else [mpiexec()]
    arguments = ["--timeout", str(timeout), "-o", os.path.abspath(output)]
    if hosts_file is not None:
        arguments += ["--hosts-file", str(hosts_file.absolute())]
    code = run(
        [
            *(*command, *on_hosts(hosts), "-n", str(n_ranks or n_slots(hosts))),
            *(sys.executable, "-c"),
            "import divisible_command; divisible_command.main()",
            *("smoke", _AS_RANK, *arguments),
        ],
        _SECONDS + 2 * timeout,
    )
    if code in (0, _MEASURED):
        return 1 if code else 0
    silent = silent_hosts(command, hosts, _SECONDS_OF_A_HOST)
    for host, reason in silent.items():
        console.say_wrapped(
            f"FAIL {host}: the launcher starts nothing there ({reason}). Try ssh {host}"
            f" true, and leave the host out until it answers"
        )
    ended = "were ended at the deadline" if code is None else f"ended with code {code}"
    known = "" if silent or not hosts else "; each host alone answers"
    console.say_wrapped(f"FAIL: the ranks {ended}{known}. What they printed is above")
    return 1
