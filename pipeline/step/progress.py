"""Keeps messages moving while a rank computes.

An MPI library moves a message only while the program is inside one of its calls. What
fits into its buffers is gone at once; a larger message is agreed on first, and then
goes piece by piece, whenever both ends look::

    rank 0   F0  send ...........F1...........  look          the message waits for F1
    rank 1       wait                           receive

    rank 0   F0  send . look . look . look .                  looks between the layers
    rank 1       wait    receive

A thread that looks all the time would take the core that computes.
"""

from __future__ import annotations

from typing import Any, Callable

from chainer import function_hook


class Progress(function_hook.FunctionHook):
    """Looks after messages between the functions of Chainer, forward and backward.

    Args:
        *looks: What to do each time.
    """

    name = "divisible.Progress"
    # Layers that run as one may do so before its eyes.
    minds_fusion = False

    def __init__(self, *looks: Callable[[], None]) -> None:
        self._looks = looks

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Looks."""
        self._look()

    def _look(self) -> None:
        for look in self._looks:
            look()

    def backward_postprocess(
        self, function: Any, in_data: tuple, out_grad: tuple
    ) -> None:
        """Looks."""
        self._look()
