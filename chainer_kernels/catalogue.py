"""Which parts of Chainer have a kernel: one row for each, and nothing loaded for it."""

from __future__ import annotations

import functools
import importlib
from typing import Callable, NamedTuple


class Entry(NamedTuple):
    """A method of Chainer's that a kernel stands for.

    Attributes:
        module: Where Chainer has it.
        name: The class and the method, ``'ReLU.forward_cpu'``, or a function.
        kernel: The module in ``chainer_kernels.functions`` and the function in it.
            It gets the arguments of the method, the :class:`~chainer.FunctionNode`
            first, and returns what the method would, or ``NotImplemented`` for inputs
            that it leaves to Chainer. A kernel of a function gets its arguments.
    """

    module: str
    name: str
    kernel: str

    def load(self) -> Callable:
        """Returns the kernel."""
        module, _, function = self.kernel.partition(":")
        return getattr(
            importlib.import_module(f"chainer_kernels.functions.{module}"), function
        )


def _entries(modules: str, rows: dict[str, dict[str, str]]) -> tuple[Entry, ...]:
    """Returns the entries of a table: kernels by methods, by modules of Chainer."""
    return tuple(
        Entry(f"chainer.{modules}.{module}", name, kernel)
        for module, methods in rows.items()
        for name, kernel in methods.items()
    )


_ACTIVATIONS = _entries(
    "functions.activation",
    {
        "relu": {
            "ReLU.forward_cpu": "activations:relu",
            "ReLUGrad2.forward_cpu": "activations:relu_grad",
        },
    },
)

CATALOGUE = (*_ACTIVATIONS,)


@functools.cache
def by_module() -> dict[str, list[Entry]]:
    """Returns the entries by the module that they belong to."""
    found: dict[str, list[Entry]] = {}
    for entry in CATALOGUE:
        found.setdefault(entry.module, []).append(entry)
    return found
