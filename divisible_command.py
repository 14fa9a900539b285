"""The console command ``divisible``, which no file of a user's hides.

It lies beside the packages, under a name that nobody else has, and imports them from
there before what ``PYTHONPATH`` or the folder of a script may have under their names.
"""

import importlib
import os
import sys


def main() -> None:
    """Runs the command."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        if sys.argv[1:2] == ["run"]:
            # While this process is small, and has no threads.
            importlib.import_module("divisible.communication.guard").guard_rank()
        command_line = importlib.import_module("pipeline.command_line.main")
    finally:
        sys.path.remove(here)
    command_line.main()
