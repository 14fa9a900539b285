"""Generated loops; their source text is the key of the compiled code on disk."""

from __future__ import annotations

import functools
import hashlib
import sys
import types

from chainer_kernels.code_cache import SOURCE
from chainer_kernels.compiling import Loop
from chainer_kernels.fusion.program import Directions, Program, directions
from chainer_kernels.fusion.source import Source, backward, forward, module


class Compiled:
    """A program, with loops that are compiled at their first call.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @functools.cached_property
    def directions(self) -> Directions:
        """The directions of the program, with the values held for the backward."""
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
    """Returns loops of one generated module; equal loops are compiled once."""
    if not sources:
        return ()
    names = imported(module(sources))
    return tuple(
        (source, Loop(names[source.name], source.signature, is_exact=True))
        for source in sources
    )


def imported(text: str) -> dict:
    """Returns the names that a module defines, by executing its text.

    The module is among those that are imported: compiled code on disk names the module
    of its functions, and another process must find a module of that name to load it.
    """
    name = f"chainer_kernels_fused_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    made = sys.modules[name] = types.ModuleType(name)
    names = vars(made)
    names[SOURCE] = text
    exec(compile(text, f"<{name}>", "exec"), names)
    return names
