"""The console command ``divisible``, which no file of a user's hides.

The module lies beside the packages, under a unique name. It imports them from there,
before files with the same names on ``PYTHONPATH`` or in the folder of a script.
"""

import importlib
import os
import sys


def main() -> None:
    """Runs the command."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        if sys.argv[1:2] in (["run"], ["compress"]):
            # While this process is small, and has no threads.
            importlib.import_module("divisible.communication.guard").guard_rank()
        command_line = importlib.import_module("pipeline.command_line.main")
    finally:
        sys.path.remove(here)
    command_line.main()
