"""The cost of chainer_compat's start-up hook.

    python -m benchmarks.startup

Each figure is the least of several fresh processes, measured inside the process
around one import: what else the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

from benchmarks.common.results import Result, command, machine


def import_seconds(module: str, *flags: str, before: str = "pass") -> float:
    """Times the import of a module in a new process."""
    code = (
        f"import sys; sys.path += {site.getsitepackages()!r}; {before}; "
        "from time import perf_counter as now; start = now(); "
        f"import {module}; print(now() - start)"
    )
    return float(output([sys.executable, *flags, "-c", code]))


def start_seconds() -> float:
    """Times an interpreter from its start to its end."""
    start = time.perf_counter()
    output([sys.executable, "-c", "pass"])
    return time.perf_counter() - start


def output(words: list[str]) -> str:
    """Runs a command and returns its output."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Measures the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="of each figure")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows: dict[str, Callable[[], float]] = {
        # -S reads no .pth file, so that the import is the first one.
        "import chainer_compat: the start-up hook": lambda: import_seconds(
            "chainer_compat", "-S"
        ),
        "python -c pass, the hook included": start_seconds,
        "import numpy": lambda: import_seconds("numpy"),
        "import chainer, after NumPy": lambda: import_seconds(
            "chainer", before="import numpy"
        ),
    }
    result = Result("startup", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer"),
        f"least of {arguments.runs}, milliseconds",
        "",
    )
    for what, seconds in rows.items():
        least = min(seconds() for _ in range(arguments.runs))
        result.write(f"{1000 * least:8.2f}  {what}")
    result.save()


if __name__ == "__main__":
    main()
