"""Polls for messages while the layers of a stage compute."""

from __future__ import annotations

from typing import Any, Callable

from chainer import function_hook


class Progress(function_hook.FunctionHook):
    """Polls for messages between the functions of Chainer, forward and backward.

    An MPI library moves a message only while the program is inside one of its calls. A
    message that fits into its buffers leaves at once. For a larger message both ends
    agree first; then it goes piece by piece, whenever both ends poll::

        rank 0   F0  send ...........F1...........  poll      the message waits for F1
        rank 1       wait                           receive

        rank 0   F0  send . poll . poll . poll .              polls between the layers
        rank 1       wait    receive

    A thread that polls all the time would use the core that computes.

    Args:
        *looks: Functions that poll for messages.
    """

    name = "divisible.Progress"
    # The hook changes no array that it sees, so prepared weights need no checks.
    only_reads = True
    # Layers may run fused: this hook does not need to see each of their functions.
    minds_fusion = False

    def __init__(self, *looks: Callable[[], None]) -> None:
        self._looks = looks

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Polls for messages."""
        for look in self._looks:
            look()

    def backward_postprocess(
        self, function: Any, in_data: tuple, out_grad: tuple
    ) -> None:
        """Polls for messages."""
        for look in self._looks:
            look()
