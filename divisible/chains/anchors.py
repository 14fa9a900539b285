"""Inputs from which functions have their sizes, besides their own.

::

    h = F.reshape(h, (len(x), x.shape[1], -1))      h, x -> Reshape with the sizes of x
    h * F.broadcast_to(norm, h.shape)               norm, x -> BroadcastTo
"""

from __future__ import annotations

from collections.abc import Sequence

from divisible.chains.arguments import Seen, followed
from divisible.chains.calls import INPUT, ChainError, Recording, Value
from divisible.chains.constants import SizedArray


def anchored(recordings: Sequence[Recording]) -> list[Recording]:
    """Returns the recordings with an input of the chain where a function needs it.

    Args:
        recordings: Equal calls in several minibatches: the first one, one with another
            number of samples, and those of other sizes.
    """
    found = list(recordings)
    for number, call in enumerate(recordings[0].calls):
        if call.path or isinstance(call.callee, SizedArray):
            continue
        anchor = _anchor(recordings, number)
        if anchor is not None:
            found = [_with_anchor(each, number, anchor) for each in found]
    return found


def _anchor(recordings: Sequence[Recording], number: int) -> Value | None:
    """Returns the input whose sizes a function has; ``None`` if it needs none."""
    seen = [Seen.of(each, number) for each in recordings]
    if _follows(seen):
        return None
    for i in range(recordings[0].n_inputs):
        shapes = [each.shapes[i] for each in recordings]
        if _follows([s.with_input(shape) for s, shape in zip(seen, shapes)]):
            return Value(INPUT, i)
    return None


def _follows(seen: Sequence[Seen]) -> bool:
    try:
        followed(seen)
    except ChainError:
        return False
    return True


def _with_anchor(recording: Recording, number: int, anchor: Value) -> Recording:
    calls = list(recording.calls)
    call = calls[number]
    calls[number] = call._replace(inputs=(*call.inputs, anchor), n_anchors=1)
    return recording._replace(calls=tuple(calls))
