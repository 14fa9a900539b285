"""Runs Chainer's own test suite against the installed Chainer.

    python tests/chainer_suite/run.py CHAINER_SRC

CHAINER_SRC is a source tree of Chainer 7.8.1. Its ``tests`` folder is copied, so
that the tests import the installed Chainer rather than the tree's, and three things
follow on the copy:

    unit tests, in two processes      ChainerMN on 2 ranks      ChainerMN on 3 ranks

The exit status is 0 when nothing fails but what known_failures.txt lists. Chainer's
setup.cfg turns every warning into an error, and so it stays here: a deprecated call
within Chainer counts as a failure.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

MARKERS = (
    "not gpu and not cudnn and not slow and not multi_gpu and not ideep "
    "and not chainerx and not theano"
)

# Names that NumPy dropped and that the tests, not Chainer, use at import, which
# would cost whole files.
MODERN_NAMES = {
    r"numpy\.complex_\b": "numpy.complex128",
    r"numpy\.product\(": "numpy.prod(",
    r"np\.int\)": "int)",
    r"dtype=numpy\.bool\)": "dtype=bool)",
    r"numpy\.object\)": "object)",
}

# Warnings of the test tools rather than of Chainer, ignored beyond setup.cfg.
FILTERS = """
    ignore:It is deprecated to return a value that is not None:DeprecationWarning
    ignore::DeprecationWarning:matplotlib
    ignore:This process .* is multi-threaded, use of fork:DeprecationWarning
    ignore:The use of fork\\(\\) :DeprecationWarning
"""

# ChainerMN's tests have no marker for ChainerX, which is not part of an installation
# from PyPI.
PLUGIN = """
import chainerx

def needs_chainerx(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return "_chx" in item.name or any(
        value is chainerx
        or (value is True and name in ("use_chx", "use_chainerx"))
        or str(value).startswith("native")
        for name, value in parameters.items()
    )

def pytest_collection_modifyitems(config, items):
    deselected = [item for item in items if needs_chainerx(item)]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]
"""

# For a half of the unit tests, and for one file of ChainerMN's.
DEADLINE_S = 1800
MPI_DEADLINE_S = 400


def main() -> int:
    """Runs everything, prints a summary and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="source tree of Chainer 7.8.1")
    parser.add_argument("--parts", nargs="+", default=["unit", "mpi2", "mpi3"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chainer-suite-") as folder:
        tests = copy_tests(arguments.source, Path(folder))
        failed, counts, incomplete = [], {}, []
        for part in arguments.parts:
            for log in run_part(part, tests):
                text = log.read_text(errors="replace")
                failed += failures(part, text)
                if not count(text, counts):
                    incomplete.append(f"{part}: {log.name}\n{text[-3000:]}")
    return summarize(failed, counts, incomplete)


def copy_tests(source: Path, folder: Path) -> Path:
    """Copies the tests, replaces removed names, and returns the copy's folder."""
    tests = folder / "tests"
    shutil.copytree(source / "tests", tests)
    for path in tests.rglob("*.py"):
        text = modern = path.read_text(encoding="utf8")
        for pattern, name in MODERN_NAMES.items():
            modern = re.sub(pattern, name, modern)
        if modern != text:
            path.write_text(modern, encoding="utf8")
    setup = (source / "setup.cfg").read_text()
    # setup.cfg adds options for doctests of the package's tree.
    setup = re.sub(r"\naddopts = .*", "", setup).replace(
        "filterwarnings =\n    error\n", f"filterwarnings =\n    error{FILTERS}"
    )
    (folder / "setup.cfg").write_text(setup)
    (tests / "without_chainerx.py").write_text(PLUGIN)
    make_digits(folder / "datasets")
    return tests


def make_digits(folder: Path) -> None:
    """Puts a stand-in for MNIST, which cannot be downloaded everywhere.

    Each digit is a noisy pattern of its own, so that a training gets somewhere.
    """
    import numpy

    random = numpy.random.RandomState(0)
    patterns = random.randint(0, 200, (10, 784))
    target = folder / "pfnet" / "chainer" / "mnist"
    target.mkdir(parents=True)
    for name, size in (("train.npz", 6000), ("test.npz", 1000)):
        y = random.randint(0, 10, size).astype(numpy.uint8)
        x = (patterns[y] + random.randint(0, 50, (size, 784))).astype(numpy.uint8)
        numpy.savez_compressed(target / name, x=x, y=y)


def run_part(part: str, tests: Path) -> list:
    """Runs one part and returns its logs."""
    pytest = [sys.executable, "-m", "pytest", "-c", "../setup.cfg", "--rootdir", ".."]
    # Unclosed files in the tests themselves would be errors.
    pytest += ["-q", "-rfE", "--tb=short", "-p", "no:unraisableexception"]
    pytest += ["-p", "no:cacheprovider", "-p", "without_chainerx", "-m", MARKERS]
    environment = dict(
        os.environ,
        CHAINER_TEST_PAIRWISE_PARAMETERIZATION="always",
        OMP_NUM_THREADS="1",
        MPLBACKEND="Agg",
        PWD=str(tests),
        PYTHONPATH=str(tests),
        CHAINER_DATASET_ROOT=str(tests.parent / "datasets"),
    )
    functions = "chainer_tests/functions_tests"
    if part == "unit":
        commands = {
            "functions": [*pytest, functions],
            "others": [*pytest, "chainer_tests", "--ignore", functions],
        }
        run_together(commands, tests, environment, DEADLINE_S)
        return [tests.parent / f"{name}.log" for name in commands]
    # A file at a time: a test that fails on one rank leaves the others waiting,
    # which shall cost the rest of its file only.
    logs = []
    for path in sorted((tests / "chainermn_tests").rglob("test_*.py")):
        file = str(path.relative_to(tests))
        logs += run_ranks(part, int(part[len("mpi") :]), file, pytest, environment)
    return logs


def run_ranks(part: str, ranks: int, file: str, pytest: list, environment: dict):
    """Runs one of ChainerMN's files under mpiexec; returns the log of each rank."""
    tests = Path(environment["PWD"])
    # Each rank its own log: their lines would mix. MPICH and Open MPI name the
    # rank differently.
    name = f"{part}-{Path(file).stem}"
    rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    script = f'exec "$0" "$@" > ../{name}-rank{rank}.log 2>&1'
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(ranks)]
    commands = {name: [*launcher, "sh", "-c", script, *pytest, file]}
    run_together(commands, tests, environment, MPI_DEADLINE_S)
    logs = [tests.parent / f"{name}-rank{rank}.log" for rank in range(ranks)]
    return [log for log in logs if log.exists()]


def run_together(commands: dict, tests: Path, environment: dict, deadline_s) -> None:
    """Runs commands side by side, each with a log; stops them at the deadline."""
    processes = []
    for name, command in commands.items():
        print(f"running {name} ...", flush=True)
        with open(tests.parent / f"{name}.log", "w") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=tests,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    for process in processes:
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def failures(part: str, text: str) -> list:
    """Returns ``'part tests/...::test'`` for each failure in pytest's summary."""
    names = re.findall(r"^(?:FAILED|ERROR) (\S.*)$", text, re.MULTILINE)
    return [f"{part} {name}" for name in dict.fromkeys(names)]


def count(text: str, counts: dict) -> bool:
    """Adds the numbers of pytest's last line; False if there is no such line."""
    lines = re.findall(r"^(?:=+ )?(\d+ .*) in [\d.]+s.*$", text, re.MULTILINE)
    if not lines:
        return False
    for number, what in re.findall(r"(\d+) (\w+)", lines[-1]):
        counts[what] = counts.get(what, 0) + int(number)
    return True


def known_failures() -> list:
    """Returns the beginnings of the names of tests that are at fault themselves."""
    lines = (HERE / "known_failures.txt").read_text().splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def summarize(failed: list, counts: dict, incomplete: list) -> int:
    """Prints what failed and the numbers; returns the exit status."""
    known = tuple(known_failures())
    new = [name for name in failed if not name.startswith(known)]
    for name in new:
        print("FAILED", name)
    for log in incomplete:
        print("NOT FINISHED", log)
    print(f"{len(failed) - len(new)} known failures (known_failures.txt)")
    print(", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    return 1 if new or incomplete or not counts.get("passed") else 0


if __name__ == "__main__":
    sys.exit(main())
