"""What a stage holds of a microbatch between its forward and its backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable

import chainer

from divisible.communication.signatures import Tensors


class Persistents:
    """What links keep besides parameters, such as running averages, at one time.

    Args:
        links: The links.
    """

    def __init__(self, links: Iterable[chainer.Link]) -> None:
        self._values = [
            (link, name, _copy(vars(link)[name]))
            for link in links
            for name in link._persistent
        ]

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Lets a forward find what another one found, and do nothing to what is."""
        # Each link once, whatever it keeps.
        present = Persistents({id(link): link for link, _, _ in self._values}.values())
        self._restore()
        try:
            yield
        finally:
            present._restore()

    def _restore(self) -> None:
        for link, name, value in self._values:
            there = vars(link)[name]
            if isinstance(there, chainer.get_array_types()) and value is not None:
                # In place, because others may hold the array.
                there[...] = value
            else:
                vars(link)[name] = value


def _copy(value: Any) -> Any:
    is_array = isinstance(value, chainer.get_array_types())
    return value.copy() if is_array else value


class Recomputable:
    """Forwards that keep their inputs only, and are run again for the backward.

    Args:
        run: ``run(microbatch, inputs, skipped)`` is the forward.
        links: Returns all links that the forward may call.
    """

    def __init__(
        self,
        run: Callable[[int, Tensors, Mapping[str, Tensors]], Any],
        links: Callable[[], Iterable[chainer.Link]],
    ) -> None:
        self._run = run
        self._links = links
        self._kept: dict[int, tuple[Tensors, Mapping[str, Tensors], Persistents]] = {}

    def forward(
        self, microbatch: int, inputs: Tensors, skipped: Mapping[str, Tensors]
    ) -> Any:
        """Runs the forward of one microbatch without a graph."""
        self._kept[microbatch] = inputs, skipped, Persistents(self._links())
        with chainer.no_backprop_mode():
            return self._run(microbatch, inputs, skipped)

    def again(self, microbatch: int) -> None:
        """Runs it again, with a graph."""
        inputs, skipped, persistents = self._kept.pop(microbatch)
        with persistents.put_back():
            self._run(microbatch, inputs, skipped)

    def __contains__(self, microbatch: int) -> bool:
        """Whether a microbatch waits to be run again."""
        return microbatch in self._kept

    def clear(self) -> None:
        """Lets go of all inputs."""
        self._kept.clear()
