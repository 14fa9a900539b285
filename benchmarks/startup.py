"""What the start-up hook of chainer_compat costs.

    python -m benchmarks.startup

Each figure is the least of several fresh processes, measured inside the process
around one import: what else the machine does only adds to it.
"""

import site
import subprocess
import sys
import time

from benchmarks.common.results import Result, command, machine

RUNS = 40


def import_ms(module: str, *flags: str, before: str = "pass") -> float:
    """Returns the milliseconds that importing a module takes in a new process."""
    code = (
        f"import sys; sys.path += {site.getsitepackages()!r}; {before}; "
        "from time import perf_counter as now; start = now(); "
        f"import {module}; print(now() - start)"
    )
    return least(lambda: float(output([sys.executable, *flags, "-c", code])))


def start_ms(*flags: str) -> float:
    """Returns the milliseconds from start to end of an interpreter."""

    def once():
        start = time.perf_counter()
        output([sys.executable, *flags, "-c", "pass"])
        return time.perf_counter() - start

    return least(once)


def least(measure) -> float:
    """Returns the least of several measurements in seconds, in milliseconds."""
    return 1000 * min(measure() for _ in range(RUNS))


def output(command: list) -> str:
    """Runs a command and returns what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Measures the figures and writes them."""
    rows = {
        # -S reads no .pth file, so that the import is the first one.
        "import chainer_compat: the start-up hook": import_ms("chainer_compat", "-S"),
        "python -c pass, the hook included": start_ms(),
        "import numpy": import_ms("numpy"),
        "import chainer, after NumPy": import_ms("chainer", before="import numpy"),
    }
    result = Result("startup")
    result.write(
        command(),
        machine("numpy", "chainer"),
        f"least of {RUNS}, milliseconds",
        "",
    )
    for what, milliseconds in rows.items():
        result.write(f"{milliseconds:8.2f}  {what}")
    result.save()


if __name__ == "__main__":
    main()
