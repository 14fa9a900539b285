"""What the start-up hook of chainer_compat costs.

    python benchmarks/startup.py > benchmarks/results/startup.txt

Starts the interpreter with the hook, and with ``-S`` and the path set by hand, where
the hook's ``.pth`` file is not read; and imports Chainer with and without cached
bytecode for the modules that are edited. Each figure is the best of several runs:
what else the machine does only adds to it.
"""

import platform
import site
import subprocess
import sys
import time

RUNS = 40


def best_ms(*commands: list) -> list:
    """Returns the least time of each command in milliseconds, run by turns."""
    best = [float("inf")] * len(commands)
    for _ in range(RUNS):
        for i, command in enumerate(commands):
            start = time.perf_counter()
            subprocess.run(command, check=True)
            best[i] = min(best[i], 1000 * (time.perf_counter() - start))
    return best


def main() -> None:
    """Prints the figures."""
    path = f"import sys; sys.path += {site.getsitepackages()!r}"
    python = [sys.executable, "-S", "-c"]
    plain, hook, table = best_ms(
        [*python, path],
        [*python, path + "; import chainer_compat"],
        [*python, path + "; import chainer_compat._finder"],
    )
    normal, chainer, numpy = best_ms(
        [sys.executable, "-c", "pass"],
        [sys.executable, "-c", "import chainer"],
        [sys.executable, "-c", "import numpy"],
    )
    print("$ python benchmarks/startup.py")
    print(f"Python {platform.python_version()}, best of {RUNS} starts, milliseconds")
    print(f"{plain:8.2f}  python -S -c pass")
    print(f"{hook - plain:8.2f}  more for import chainer_compat, the start-up hook")
    print(f"{table - hook:8.2f}  more for its table of shims, read with Chainer only")
    print(f"{normal:8.2f}  python -c pass")
    print(f"{numpy - normal:8.2f}  more for import numpy")
    print(f"{chainer - normal:8.2f}  more for import chainer, NumPy included")


if __name__ == "__main__":
    main()
