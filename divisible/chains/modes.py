"""The line of a forward that goes another way in test mode."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Callable

import chainer

from divisible.chains.apart import Apart
from divisible.chains.calls import ChainError, title
from divisible.chains.places import Place
from divisible.chains.preserved_state import alike_run
from divisible.chains.recording import Noted, run

#: Functions of Chainer that are there in training only.
_IN_TRAINING = ("Dropout", "Zoneout", "SimplifiedDropconnect")


def where_modes_differ(
    chain: chainer.Chain,
    forward: Callable[..., Any],
    inputs: Sequence[Any],
    apart: Apart,
    as_variables: bool,
) -> Place | None:
    """Returns the first call that a forward makes in one mode only.

    Args:
        chain (chainer.Chain): The chain.
        forward: The function of the chain to take apart.
        inputs: Arrays of the example.
        apart (Apart): The links that are taken apart.
        as_variables (bool): Whether the forward gets variables in place of arrays.

    Returns:
        Place or None: Line of the user's code, if the modes make different calls.
    """
    runs: list[list[Noted]] = []
    for train in (True, False):
        try:
            with alike_run(chain, train):
                noted = run(chain, forward, inputs, apart, as_variables).noted
        except ChainError:
            return None
        runs.append([n for n in noted if type(n.callee).__name__ not in _IN_TRAINING])
    titles = [[title(n.callee, n.path) for n in noted] for noted in runs]
    changes = difflib.SequenceMatcher(None, *titles, autojunk=False).get_opcodes()
    for tag, i, _, j, _ in changes:
        if tag != "equal":
            return (runs[1][j] if tag == "insert" else runs[0][i]).place
    return None
