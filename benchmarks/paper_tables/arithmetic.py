"""The arithmetic of a step: kernels with a provider, or Chainer's own."""

from __future__ import annotations

from typing import NamedTuple

#: Kernels in force, or not. Samples from before there were kernels state neither.
ON, OFF, UNSTATED = "on", "off", "unstated"
#: The provider of Chainer's own arithmetic.
NUMPY = "numpy"


class Arithmetic(NamedTuple):
    """Kernels and provider.

    Attributes:
        kernels: ``ON``, ``OFF`` or ``UNSTATED``.
        provider: Name of the provider of products and convolutions: one of
            `chainer_kernels.providers.NAMES` with the kernels, otherwise ``NUMPY``.
    """

    kernels: str = UNSTATED
    provider: str = NUMPY

    @property
    def title(self) -> str:
        """The arithmetic in words."""
        return {
            ON: f"kernels on, provider {self.provider}",
            OFF: "kernels off: Chainer's own arithmetic",
            UNSTATED: "before there were kernels",
        }[self.kernels]


def on_this_machine(kernels: str) -> Arithmetic:
    """Returns the arithmetic with kernels ``ON`` or ``OFF``.

    The provider is the one that `chainer_kernels` chooses here.
    """
    if kernels == OFF:
        return Arithmetic(OFF)
    return Arithmetic(ON, _provider().__name__.rpartition(".")[2])


def put_in_force(kernels: str) -> None:
    """Turns the kernels ``ON`` or ``OFF``; leaves them as they are if ``UNSTATED``."""
    # Here, because the process that only starts hosts has no use for Chainer.
    import chainer_kernels

    if kernels == ON:
        chainer_kernels.enable()
    elif kernels == OFF:
        chainer_kernels.disable()


def library(arithmetic: Arithmetic) -> str:
    """Names the library of the provider, with its version."""
    if arithmetic.kernels == ON:
        return f"{_provider().NAME} ({_provider().version()})"
    return "NumPy"


def _provider():
    from chainer_kernels import providers

    return providers.active()
