"""``python -m chainer_compat run``: an old script as it is."""

import argparse
import os
import runpy
import sys

from chainer_compat import _modes


def add_parser(commands) -> None:
    """Adds the command ``run`` to those of ``python -m chainer_compat``."""
    parser = commands.add_parser(
        "run",
        help="run a script with names, modules and arguments of its years",
        description="Runs SCRIPT as 'python SCRIPT' would, with names that NumPy and"
        " Python removed (names), CuPy's former modules, or a stand-in for CuPy"
        " (cupy), and on request what Chainer 1 had (chainer1), and the CPU in"
        " place of GPUs (cpu). A warning tells what the script used.",
    )
    parser.add_argument(
        "--compat",
        metavar="MODES",
        default=_modes.DEFAULT,
        help="names of modes, separated by commas (default: %(default)s)",
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    parser.set_defaults(function=lambda args: run(parser, args))


def run(parser, args) -> int:
    """Runs a script; returns 0 at its end."""
    try:
        _modes.enable(args.compat)
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    if not os.path.exists(args.script):
        parser.error(f"there is no script {args.script}")
    sys.argv[:] = [args.script, *args.arguments]
    # The first place for modules was the current folder.
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    runpy.run_path(args.script, run_name="__main__")
    return 0
