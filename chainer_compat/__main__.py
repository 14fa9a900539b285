"""Prints the versions found on this machine, and the repairs of Chainer.

python -m chainer_compat
python -m chainer_compat run SCRIPT.py ...

The exit status is 1 if a shim that is needed here could not be applied.
"""

import argparse
import importlib
import platform
import sys

import chainer_compat
from chainer_compat import _scripts, _shim

# Uses that C code refuses, by the first version of NumPy that refuses them.
LIMITS = {
    "2.4": "float(x) and int(x) of an array of one element with an axis",
    "2.3": "x.tostring()",
    "2.0": "x.itemset(), x.newbyteorder() and x.ptp()",
    "1.24": "ragged arrays, such as np.array([[1, 2], [3]])",
}


def main() -> int:
    """Prints the report and returns the exit status."""
    for name, version in versions().items():
        print(f"{name:<12} {version}")
    print()
    failed = 0
    statuses = chainer_compat.report()
    width = max(len(status.name) for status in statuses)
    for status in statuses:
        failed += status.state == _shim.FAILED
        detail = "" if status.state in (_shim.APPLIED, _shim.READY) else status.detail
        state = f"{status.state}: {detail}" if detail else status.state
        print(f"{status.name:<{width}} {state}")
        print(f"    {status.module}: {status.why}")
    print("\napplied: at work in this process; ready: applied once imported")
    print_limits(_shim.installed_version("numpy"))
    return 1 if failed else 0


def print_limits(numpy_version) -> None:
    """Prints the uses that this NumPy refuses and an older one accepts."""
    limits = {
        version: what
        for version, what in LIMITS.items()
        if numpy_version and _shim.release(numpy_version) >= _shim.release(version)
    }
    if not limits:
        return
    print(f"\nWhat NumPy {numpy_version} refuses in your own scripts, beyond repair:")
    for version, what in limits.items():
        print(f"    needs NumPy below {version:<4}  {what}")
    print(
        f"\"make install NUMPY='<{next(iter(limits))}'\" installs such a NumPy. Removed"
        " names come back\nby chainer_compat.enable_numpy_aliases() and"
        " enable_python_aliases() in the script,\nor by python -m chainer_compat run"
        " SCRIPT."
    )


def versions() -> dict:
    """Returns the versions that matter, or why there is none, by name."""
    found = {"Python": platform.python_version()}
    for name, module in (
        ("NumPy", "numpy"),
        ("SciPy", "scipy"),
        ("h5py", "h5py"),
        ("protobuf", "google.protobuf"),
        ("CuPy", "cupy"),
        ("mpi4py", "mpi4py"),
    ):
        found[name] = _shim.installed_version(module) or "not installed"
    found["MPI library"] = mpi_library()
    found["Chainer"] = chainer_version()
    return found


def mpi_library() -> str:
    """Returns the name of the MPI library, without starting MPI."""
    try:
        rc = importlib.import_module("mpi4py").rc
        rc.initialize = rc.finalize = False
        text = importlib.import_module("mpi4py.MPI").Get_library_version()
    except (ImportError, RuntimeError) as error:
        return f"not usable: {error}"
    lines = text.replace("\0", "").split("\n")
    return " ".join(lines[0].replace("\t", " ").split())


def chainer_version() -> str:
    """Imports Chainer and returns its version and place."""
    try:
        chainer = importlib.import_module("chainer")
    except ImportError as error:
        return f"not usable: {error}"
    return f"{chainer.__version__} ({chainer.__file__})"


def parse() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m chainer_compat",
        description="Prints what was found on this machine and what was repaired in"
        " Chainer. The exit status is 1 if a repair failed.",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    _scripts.add_parser(commands)
    parser.set_defaults(function=lambda args: main())
    return parser.parse_args()


if __name__ == "__main__":
    parsed = parse()
    sys.exit(parsed.function(parsed))
