"""``python -m pipeline SCRIPT``, which is ``divisible run SCRIPT``.

A file or folder ``pipeline`` where it is called hides this one.
"""

import sys

import click

from pipeline import scripts
from pipeline.command_line.run import run_command

if __name__ == "__main__":
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        context = click.Context(
            run_command, info_name="python -m pipeline", **run_command.context_settings
        )
        print(run_command.get_help(context))
        sys.exit(0 if sys.argv[1:] else 2)
    scripts.run_script(sys.argv[1:])
