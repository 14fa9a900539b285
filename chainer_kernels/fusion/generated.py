"""Generated loops as files that Numba can key, and keep the code of.

::

    cache directory / fused / <hash of the text>.py     written by whoever is first
    cache directory / ...                               its compiled code

The date of a file is always the same: Numba compiles anew when that changes, and ranks
of a host that write the same file at once must not see to that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from chainer_kernels.compiling import Loop, cache_directory
from chainer_kernels.fusion.program import Directions, Program, directions
from chainer_kernels.fusion.source import Source, backward, forward, module

_DATE = 1.0e9


class Compiled:
    """A program, with loops that are compiled when they are called first.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @functools.cached_property
    def directions(self) -> Directions:
        """The directions of the program, which say what is held for the backward."""
        return directions(self.program)

    @functools.cached_property
    def forward(self) -> tuple[Source, Loop]:
        """The loop that computes the output."""
        return loops((forward(self.program),))[0]

    @functools.cached_property
    def backward(self) -> tuple[tuple[Source, Loop], ...]:
        """The loops that compute the gradients."""
        return loops(tuple(backward(self.program, self.directions)))

    @property
    def n_arrays(self) -> int:
        """How many arrays are read and written in both directions."""
        both = [self.forward, *self.backward]
        return sum(len(source.reads) + len(source.writes) for source, _ in both)


@functools.cache
def loops(sources: tuple[Source, ...]) -> tuple[tuple[Source, Loop], ...]:
    """Returns loops, of one file; equal ones are compiled once."""
    if not sources:
        return ()
    names = imported(module(sources))
    return tuple(
        (source, Loop(names[source.name], source.signature, is_exact=True))
        for source in sources
    )


def imported(text: str) -> dict:
    """Returns what the module of a text defines; from a file where one can be."""
    name = f"chainer_kernels_fused_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    directory = cache_directory()
    if directory is not None:
        with contextlib.suppress(OSError):
            path = _written(Path(directory, "fused"), name, text)
            spec = importlib.util.spec_from_file_location(name, path)
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            return vars(loaded)
    names = {"__name__": name}
    exec(compile(text, f"<{name}>", "exec"), names)
    return names


def _written(folder: Path, name: str, text: str) -> Path:
    """Writes a file, unless it is there, whole or not at all."""
    path = folder / f"{name}.py"
    if path.is_file() and path.read_text() == text:
        return path
    folder.mkdir(exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.utime(temporary, (_DATE, _DATE))
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path
