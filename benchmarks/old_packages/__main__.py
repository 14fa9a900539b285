"""Installs and tries the packages, and writes the table."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.common.results import ROOT, Result, command, machine

PROGRAMS = Path(__file__).parent / "programs"
#: Code that a program is run after, in turn, until it works.
ALIASES = (
    "",
    "import chainer_compat; chainer_compat.enable_numpy_aliases();"
    " chainer_compat.enable_python_aliases()",
)


class Package(NamedTuple):
    """A package to try.

    Attributes:
        name: Name on PyPI.
        needs: Other packages that it needs and does not declare, with conditions.
        alone: Whether the package is installed without its requirements, which no
            longer build.
        unpacked: Whether its archive is only unpacked, since it has an extension for
            GPUs that no longer builds, and does without.
    """

    name: str
    needs: tuple[str, ...] = ()
    alone: bool = False
    unpacked: bool = False

    @property
    def program(self) -> Path:
        """The script that uses it."""
        return PROGRAMS / f"with_{self.name.replace('-', '_')}.py"


PACKAGES = (
    Package("chainercv", ("pillow",), unpacked=True),
    Package(
        "chainerrl", ("cached-property", "filelock", "gym<0.18", "pillow"), alone=True
    ),
    Package(
        "chainer-chemistry", ("rdkit", "pandas", "tqdm", "scikit-learn"), alone=True
    ),
    Package("chainerui", ("sqlalchemy<2",)),
)


class Environment:
    """A virtual environment with this project and a package.

    Args:
        folder: Where.
        numpy: A condition on NumPy's version, such as ``'<1.24'``, or nothing.
        package: The package.
        timeout: Seconds of an installation.
    """

    def __init__(
        self, folder: Path, numpy: str, package: Package, timeout: float
    ) -> None:
        self.python = folder / "bin" / "python"
        self._timeout = timeout
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        constraint = f"file://{ROOT}/constraints.txt"
        self._environment = {
            **os.environ,
            "PIP_CONSTRAINT": constraint,
            "PIP_BUILD_CONSTRAINT": constraint,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self._environment.pop("PYTHONPATH", None)
        self.failure = self._install(
            f"{ROOT}[mpich]", f"numpy{numpy}"
        ) or self._install("wheel", "setuptools<81", *package.needs, f"numpy{numpy}")
        if self.failure:
            return
        if package.unpacked:
            self.failure = self._unpack(package.name, folder)
            return
        # In one call with the conditions on others, which another would not heed.
        with_others = (*package.needs, f"numpy{numpy}")
        options = ("--no-deps",) if package.alone else with_others
        self.failure = self._install("--no-build-isolation", package.name, *options)

    def _install(self, *arguments: str) -> str:
        """Installs something, and returns the last line of its error."""
        return self._run("-m", "pip", "install", "--quiet", *arguments)

    def _unpack(self, name: str, folder: Path) -> str:
        """Unpacks a package's archive beside the others; returns an error, if any."""
        options = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:")
        failure = self._run(
            *("-m", "pip", "download", "--quiet", *options, name, "--dest", folder)
        )
        if not failure:
            (archive,) = folder.glob("*.tar.gz")
            shutil.unpack_archive(archive, folder / "unpacked")
            (top,) = (folder / "unpacked").iterdir()
            (packages,) = folder.glob("lib/*/site-packages")
            shutil.move(top / name, packages / name)
            # With its version.
            shutil.move(top / f"{name}.egg-info", packages / f"{name}.egg-info")
        return failure

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.python, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=self._timeout,
            # Not among this project's files, which would hide what is installed.
            cwd=self.python.parent,
        )
        text = done.stderr.replace(str(self.python.parents[1]), "ENV")
        lines = [line for line in text.splitlines() if line.strip()]
        return (
            lines[-1] if done.returncode and lines else "ended" * bool(done.returncode)
        )

    def attempt(self, program: Path, before: str) -> str:
        """Runs a program after a line, and returns the last line of its error."""
        code = f"{before}\nimport runpy; runpy.run_path({str(program)!r})"
        return self._run("-W", "ignore", "-c", code)

    def version(self, name: str) -> str:
        """Returns the version of a package that is installed."""
        line = f"import importlib.metadata as m; print(m.version({name!r}))"
        done = subprocess.run([self.python, "-c", line], capture_output=True, text=True)
        return done.stdout.strip() or "none"


def rows(package: Package, numpys: list[str], timeout: float) -> list[str]:
    """Tries a package, and returns the lines of the table."""
    found = []
    for numpy in numpys:
        with tempfile.TemporaryDirectory() as folder:
            environment = Environment(Path(folder, "env"), numpy, package, timeout)
            versions = f"{package.name} {environment.version(package.name)}"
            versions += f", NumPy {environment.version('numpy')}"
            if environment.failure:
                found.append(f"{versions:42} not installed: {environment.failure}")
                continue
            for aliases in ALIASES:
                failure = environment.attempt(package.program, aliases)
                how = "with the names that are gone" if aliases else "as it is"
                found.append(f"{versions:42} {how}: {failure or 'works'}")
                if not failure:
                    return found
    return found


def main() -> None:
    """Tries all packages and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("packages", nargs="*", help="of those; all by default")
    add("--numpy", nargs="*", default=["", "<2.4", "<1.24"], help="in this order")
    add("--timeout", type=float, default=900, help="seconds of an installation")
    add("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("old_packages", arguments.output)
    result.write(command(), machine("chainer"), "")
    for package in PACKAGES:
        if package.name in arguments.packages or not arguments.packages:
            result.write(*rows(package, arguments.numpy, arguments.timeout))
    result.save()


if __name__ == "__main__":
    main()
