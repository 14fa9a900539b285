"""Compiled loops of a batch normalization and the functions behind it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from chainer_kernels.compiling import Loop
from chainer_kernels.fusion import head_source
from chainer_kernels.fusion.generated import imported
from chainer_kernels.fusion.head_source import HEAD, HeadSource
from chainer_kernels.fusion.program import Directions, Program, directions


class Pair(NamedTuple):
    """A loop and its source."""

    source: HeadSource
    loop: Loop


class HeadedLoops:
    """The functions behind a batch normalization, with loops for both directions.

    Args:
        program: The functions; their first input is the normalization's output.
    """

    #: How many arrays a batch normalization alone reads and writes. Forward, one for
    #: the statistics and two for its output; backward, two for sums and three for the
    #: gradient of its input.
    N_ARRAYS_OF_HEAD = 8

    def __init__(self, program: Program) -> None:
        self.program = program
        self._pairs: dict[tuple, Pair] = {}

    @functools.cached_property
    def directions(self) -> Directions:
        """The values held for the backward.

        The backward reads the normalization's input in any case. Where the gradients
        need no other input, the output is not held but computed again.
        """
        found = directions(self.program)
        _, leaves = self.program.needed(found.gradients)
        inputs = set(leaves) & set(range(self.program.n_inputs))
        if inputs <= {HEAD}:
            return Directions(False, tuple(inputs), found.gradients)
        return found

    @property
    def gradient(self) -> int:
        """The value of the gradient of what the batch normalization returns."""
        return self.program.gradients[HEAD]

    @property
    def _given(self) -> list[int]:
        """The values that the backward begins with, besides inputs."""
        return [self.program.output] if self.directions.keeps_output else []

    @property
    def n_arrays(self) -> int:
        """How many arrays are read and written in both directions."""
        program = self.program

        def read(value: int, given: Sequence[int]) -> int:
            _, leaves = program.needed([value], given)
            return len({HEAD, *leaves})

        others = set(program.gradients[1:]) - {None, program.gradient, self.gradient}
        n = 1 + read(program.output, ()) + 1
        n += sum(read(value, self._given) + 1 for value in others)
        gradient = read(self.gradient, self._given)
        if self.gradient in program.gradients[1:]:
            # The loop of sums writes the gradient, and the next loop reads it.
            return n + gradient + 1 + 3
        return n + gradient + gradient + 1

    def forward(self, kind: str) -> Pair:
        """Returns the loop that computes the output.

        Args:
            kind: ``'rows'`` where each row belongs to a channel, or ``'columns'``.
        """
        return self._elementwise(kind, "forward", self.program.output, [])

    def other(self, kind: str, value: int) -> Pair:
        """Returns the loop that computes the gradient of another input."""
        return self._elementwise(kind, "other", value, self._given)

    def inputs(self, kind: str) -> Pair:
        """Returns the loop that computes the gradient of the input."""
        key = "inputs", kind
        if key not in self._pairs:
            source = head_source.inputs(self.program, kind, self._given)
            self._pairs[key] = _compiled(source)
        return self._pairs[key]

    def sums(self, kind: str, is_kept: bool) -> Pair:
        """Returns the loop that computes the sums of gradients.

        Args:
            kind: ``'rows'`` or ``'columns'``.
            is_kept: Whether the loop also writes the gradients to an output array.
        """
        key = "sums", kind, is_kept
        if key not in self._pairs:
            options = "gradient", self.gradient, self._given
            inner = head_source.elementwise(self.program, kind, *options)
            self._pairs[key] = _compiled(head_source.sums(inner, kind, is_kept), inner)
        return self._pairs[key]

    def _elementwise(
        self, kind: str, name: str, value: int, given: Sequence[int]
    ) -> Pair:
        key = name, kind, value
        if key not in self._pairs:
            source = head_source.elementwise(self.program, kind, name, value, given)
            self._pairs[key] = _compiled(source)
        return self._pairs[key]


@functools.cache
def _compiled(source: HeadSource, inner: HeadSource | None = None) -> Pair:
    """Returns a compiled loop; equal sources are compiled once."""
    called = [] if inner is None else [inner]
    names = imported(head_source.module(source, called))
    return Pair(source, Loop(names[source.name], source.signature, is_exact=True))
