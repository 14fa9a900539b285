"""The option ``--quick`` of benchmarks that take long.

A quick run shows that the benchmark works, and what it writes. It has smaller defaults,
and its result does not replace the kept one::

    python -m benchmarks.NAME              benchmarks/results/NAME.txt
    python -m benchmarks.NAME --quick      build/quick/NAME.txt
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from benchmarks.common.results import ROOT

#: Folder of the results of quick runs.
FOLDER = ROOT / "build" / "quick"


def parse(
    parser: argparse.ArgumentParser,
    name: str,
    smaller: dict[str, Any],
    argv: Sequence[str] | None = None,
    *,
    text: str = "",
    suffix: str = ".txt",
) -> argparse.Namespace:
    """Reads a command line that may have ``--quick``.

    Args:
        parser: Parser with all other options, such as ``--output``.
        name: Name of the result.
        smaller: Defaults of a quick run, by the destination of the option. Options that
            the command line has win over them.
        argv: Arguments of the command; those of this process by default.
        text: Text of what else is smaller, which ``quick`` tells the benchmark.
        suffix: Suffix of the result's file.

    Returns:
        The arguments, with ``quick``.
    """
    file = FOLDER / f"{name}{suffix}"
    options = " ".join(_as_typed(*each) for each in smaller.items())
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short run, to see it work: "
        + ", ".join(filter(None, (text, options))).replace("%", "%%")
        + f"; its result is {file.relative_to(ROOT)}",
    )
    arguments = parser.parse_args(argv)
    if arguments.quick:
        parser.set_defaults(output=file, **smaller)
        arguments = parser.parse_args(argv)
    return arguments


def _as_typed(option: str, value: Any) -> str:
    """Returns an option as one would type it."""
    words = map(str, value if isinstance(value, (list, tuple)) else [value])
    return shlex.join([f"--{option.replace('_', '-')}", *words])
