"""Runs scripts one after the other in this process, each with its own output.

``python -m tests.support.script_runs OUT SCRIPT...``, on one rank or on several. What a
script prints on a rank goes into ``OUT/NAME.RANK.txt``; its option is ``--out
OUT/NAME``.
"""

import io
import os
import runpy
import sys
from pathlib import Path

from mpi4py import MPI


class Output(io.TextIOBase):
    """The standard output of all scripts: extensions of Chainer keep the first one."""

    file = sys.__stdout__

    def write(self, text: str) -> int:
        return self.file.write(text)

    def flush(self) -> None:
        self.file.flush()


def main() -> None:
    out, *scripts = map(Path, sys.argv[1:])
    sys.stdout = Output()
    for script in scripts:
        folder = out / script.stem
        folder.mkdir(parents=True, exist_ok=True)
        sys.argv = [str(script), "--out", str(folder)]
        sys.path[0] = str(script.parent)
        os.chdir(folder)
        with open(f"{folder}.{MPI.COMM_WORLD.rank}.txt", "w") as Output.file:
            try:
                runpy.run_path(str(script), run_name="__main__")
            finally:
                Output.file = sys.__stdout__
    print("all done", flush=True)


if __name__ == "__main__":
    main()
