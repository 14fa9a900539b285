"""Common parts of benchmarks: alternating runs, ratios with range, result files.

Only the standard library is imported here, so that a benchmark of import times can use
it too.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, TypeVar

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
#: Largest part of a virtual machine's time that its hypervisor may give to others
#: during an undisturbed measurement. Least number of tries, and least seconds of
#: trying. Seconds of rest before the next try.
STOLEN, TRIES, PATIENCE, REST = 0.05, 3, 120.0, 5.0

T = TypeVar("T")


def processor() -> str:
    """Names the processor, as the operating system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    # Fields of the first core; the name of a virtual machine may not be informative.
    found = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name")
    if name is None:
        return platform.machine()
    numbers = [f"{key} {found[key]}" for key in ("cpu family", "model") if key in found]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def machine(*packages: str) -> str:
    """Describes the versions and settings that the figures depend on.

    Args:
        *packages: Packages whose versions matter. One that is not installed, such as
            ``mpich`` beside a system's MPI, is described as missing.

    """
    versions = [f"{name} {_version(name)}" for name in packages]
    # The variable may restrict OpenBLAS to the kernels of an older processor.
    kind = "OPENBLAS_CORETYPE"
    held = [f"{kind}={os.environ[kind]}"] if kind in os.environ else []
    return ", ".join(
        [
            f"{processor()}, {os.cpu_count()} cores",
            f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
            f"Python {platform.python_version()}",
            *versions,
            *held,
            f"load average at the start {os.getloadavg()[0]:.1f}",
        ]
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def command(before: str = "") -> str:
    """Returns the command that started this benchmark, as one would type it.

    Args:
        before: Text before ``python``, such as ``mpiexec -n 2``.
    """
    name = sys.modules["__main__"].__spec__.name.removesuffix(".__main__")
    return f"{before} python -m {shlex.join([name, *sys.argv[1:]])}".lstrip()


def new_file(text: str) -> Path:
    """Returns the path of a file to write, for ``type=`` of an argument.

    Its folder is made at once: a picture is drawn last, when all was measured.

    Args:
        text: Path, as on the command line.

    Raises:
        argparse.ArgumentTypeError: If there cannot be such a folder.
    """
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"no folder for {text}: {error}") from None
    return path


class Result:
    """The text of one result: printed line by line, and written to a file at the end.

    Args:
        name (str): Name of the benchmark; the file is ``benchmarks/results/NAME.txt``.
        output (Path or None): Another file.
        silent (bool): Whether to do nothing at all: on every rank but one.

    """

    def __init__(
        self, name: str, output: Path | None = None, silent: bool = False
    ) -> None:
        self._path = output or RESULTS / f"{name}.txt"
        self._silent = silent
        self._lines: list[str] = []
        self._begun = time.perf_counter()

    def write(self, *lines: str) -> None:
        """Adds lines; an empty one without arguments."""
        if self._silent:
            return
        for line in lines or [""]:
            self._lines.append(line.rstrip())
            print(self._lines[-1], flush=True)

    def progress(self, text: str) -> None:
        """Prints a line that the file does not keep, so that one sees the run work.

        Args:
            text: Name of a part that has ended, or that begins.
        """
        if not self._silent:
            minutes = (time.perf_counter() - self._begun) / 60
            print(f"{minutes:5.1f} min: {text}", flush=True)

    def save(self) -> None:
        """Writes the file, and prints where it is."""
        if not self._silent:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("\n".join(self._lines) + "\n")
            print(f"written: {os.path.relpath(self._path)}", flush=True)


def alternate(
    variants: Mapping[str, Any],
    rounds: int,
    seconds_of: Callable[[Any], float],
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, list[float]]:
    """Times the variants in turn, round after round, so that a disturbance hits all.

    Args:
        variants: Variants to time, by name.
        rounds (int): Number of rounds.
        seconds_of: Runs a variant once and returns its seconds.
        progress: Function that is called with a text after each round.

    Returns:
        The seconds of each variant in every round, by name.

    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for i in range(rounds):
        # Another order every round, so that no variant always follows the same one.
        for name in names[i % len(names) :] + names[: i % len(names)]:
            seconds[name].append(seconds_of(variants[name]))
        progress(f"round {i + 1} of {rounds}")
    return seconds


def wall_seconds(function: Callable[[], Any]) -> float:
    """Runs a function and returns the seconds it took."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cpu_seconds(function: Callable[[], Any]) -> float:
    """Runs a function and returns the CPU seconds it took."""
    start = time.process_time()
    function()
    return time.process_time() - start


def ratios(above: Sequence[float], below: Sequence[float]) -> str:
    """Formats the ratios of pairs, as ``median (min..max)``."""
    each = [a / b for a, b in zip(above, below)]
    return f"{statistics.median(each):5.2f} ({min(each):.2f}..{max(each):.2f})"


def quiet_barrier(comm: Any, pause: float = 0.002) -> None:
    """Waits for all ranks without using the core, which another rank may need.

    Args:
        comm (mpi4py.MPI.Comm): Communicator of the ranks to wait for.
        pause (float): Seconds between two polls.

    """
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(pause)


def stolen_seconds() -> float:
    """Returns core seconds that this machine wanted and its hypervisor gave to others.

    Of all its cores, since it started; 0 where the operating system does not tell.
    """
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return 0.0
    return int(first.split()[8]) / os.sysconf("SC_CLK_TCK")


def undisturbed(
    comm: Any, measure: Callable[[], T], patient: bool = True
) -> tuple[T, float]:
    """Measures repeatedly, until the hypervisor leaves the machine alone meanwhile.

    Args:
        comm (mpi4py.MPI.Comm): Ranks on this machine that measure together.
        measure (callable): Function that measures.
        patient (bool): Whether to try again; otherwise the first try counts, however
            disturbed.

    Returns:
        The result of the last try, and the part of the machine's time during it that
        was given to others. The part is at most `STOLEN`, unless `TRIES` tries in
        `PATIENCE` seconds had more.

    """
    begin, tries = time.perf_counter(), 0
    while True:
        start, before = time.perf_counter(), stolen_seconds()
        found = measure()
        end, tries = time.perf_counter(), tries + 1
        stolen = (stolen_seconds() - before) / (end - start) / os.cpu_count()
        is_enough = not patient or (tries >= TRIES and end - begin > PATIENCE)
        stolen, is_enough = comm.bcast((stolen, is_enough))
        if stolen <= STOLEN or is_enough:
            return found, stolen
        time.sleep(REST)
