"""Packages that only some benchmarks need, of the extras in ``setup.cfg``."""

from __future__ import annotations

import argparse
from importlib.util import find_spec


def require(parser: argparse.ArgumentParser, package: str, extra: str) -> None:
    """Ends a benchmark whose package is not installed.

    Args:
        parser: Parser of the benchmark.
        package: Name of the package, as in ``import``.
        extra: Extra that has it.
    """
    if find_spec(package) is None:
        parser.error(
            f"{package} is not installed. The extra {extra!r} has it:"
            f" pip install --editable '.[{extra}]'"
        )
