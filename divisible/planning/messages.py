"""The dtypes of messages between stages, chosen for each edge and direction.

A narrow message is shorter on its link, but both of its ranks code it meanwhile::

    float32    |============ link ============|
    int8       |encode|= link =|decode|            chosen: the sum is less

A link works by itself while ranks compute, and messages are often hidden; coding takes
the time of both ranks. So coding counts double in this choice. On a fast link, such as
within a host, it takes longer than it saves. All bytes that cross a cut count as
floating-point numbers of the width of the model's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from divisible.communication.narrowing import Pair, pair_of
from divisible.communication.wire import BLOCK, WIRE
from divisible.planning.coding import CodingRate, measure_coding
from divisible.planning.message_plan import WHOLE, MessagePlan
from divisible.planning.profile import Profile
from divisible.planning.units import format_seconds

# Weight of a second of coding, against one on a link.
_WEIGHT_OF_CODING = 2


class Messages(NamedTuple):
    """The messages of one direction, with values for each edge.

    Attributes:
        names: Names of the dtypes to choose from.
        choice: The chosen one, as an index of ``names``.
        link: Seconds on the link.
        encode: Seconds of the sender.
        decode: Seconds of the receiver.
    """

    names: Sequence[str]
    choice: np.ndarray
    link: np.ndarray
    encode: np.ndarray
    decode: np.ndarray

    @classmethod
    def whole(cls, link: np.ndarray) -> Messages:
        """Returns messages that are not narrowed, from their seconds on the links."""
        none = np.zeros_like(link)
        return cls((WHOLE,), none.astype(int), link, none, none)


@dataclass(frozen=True)
class Narrowing:
    """The dtypes to choose from, and the rates of coding.

    Attributes:
        forward: Names of dtypes for activations; the first one is ``'fp32'``.
        backward: Names of dtypes for gradients; the first one is ``'fp32'``.
        coding: Speed of coding on a rank whose speed is 1, by name.
        n_bytes: Bytes of a number that is not narrowed.
        fixed: The dtypes of each edge; empty for the fastest ones.
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    coding: Mapping[str, CodingRate] = field(repr=False)
    n_bytes: int = 4
    fixed: tuple[Pair, ...] = ()

    @classmethod
    def among(
        cls,
        choices: Sequence[Any],
        profile: Profile,
        coding: Mapping[str, CodingRate] | None = None,
        fixed: bool = False,
    ) -> Narrowing | None:
        """Returns what may be narrowed; ``None`` for nothing.

        Args:
            choices: Dtypes to choose from, each one name, or two for activations and
                gradients; if ``fixed``, those of each edge.
            profile: Profile of the model, with its rates of coding.
            coding: Rates that take precedence; what is missing is measured here.
            fixed: Whether the dtypes are given.
        """
        pairs = tuple(map(pair_of, choices))
        forward, backward = (
            tuple(dict.fromkeys([WHOLE, *(pair[i] for pair in pairs)])) for i in (0, 1)
        )
        names = {*forward, *backward} - {WHOLE}
        if not names:
            return None
        rates = {**profile.coding, **(coding or {})}
        missing = measure_coding(sorted(names - rates.keys()))
        return cls(
            forward,
            backward,
            {name: rates.get(name) or missing[name] for name in sorted(names)},
            _bytes_of_numbers(profile),
            pairs if fixed else (),
        )

    def messages(
        self,
        is_forward: bool,
        n_bytes: np.ndarray,
        bandwidth: np.ndarray,
        sender: np.ndarray,
        receiver: np.ndarray,
    ) -> Messages:
        """Returns the messages over all edges, in the fastest dtypes or the fixed ones.

        Args:
            is_forward: Whether messages have activations.
            n_bytes: Bytes of a message that is not narrowed; all other arrays have its
                shape, or one that broadcasts to it. Edges are the first axis.
            bandwidth: Bytes per second of each link; infinite within a rank.
            sender: Speed of the rank that sends.
            receiver: Speed of the rank that receives.
        """
        names = self.forward if is_forward else self.backward
        # Seconds on the link, of the sender and of the receiver, for each name.
        seconds = np.zeros((len(names), 3, *n_bytes.shape))
        for of_name, name in zip(seconds, names):
            of_name[0] = n_bytes / bandwidth
            if WIRE[name].bits >= 8 * self.n_bytes:
                continue
            n, rate = n_bytes / self.n_bytes, self.coding[name]
            of_name[0] = WIRE[name].n_bytes(n, BLOCK) / bandwidth
            of_name[1] = n / rate.encode / sender
            of_name[2] = n / rate.decode / receiver
        if self.fixed:
            given = [names.index(pair[not is_forward]) for pair in self.fixed]
            shape = len(given), *[1] * (n_bytes.ndim - 1)
            choice = np.broadcast_to(np.reshape(given, shape), n_bytes.shape)
        else:
            weighed = seconds[:, 0] + _WEIGHT_OF_CODING * seconds[:, 1:].sum(axis=1)
            # The first of several equally fast ones, which is not narrowed.
            choice = weighed.argmin(axis=0)
        chosen = np.take_along_axis(seconds, choice[None, None], axis=0)[0]
        # Within a rank nothing is sent.
        chosen[1:] *= np.isfinite(bandwidth)
        return Messages(names, choice, *chosen)


def both_ways(
    narrowing: Narrowing | None,
    n_bytes: np.ndarray,
    bandwidth: np.ndarray,
    speeds: np.ndarray,
) -> tuple[Messages, Messages]:
    """Returns the messages forward and backward over all edges.

    Args:
        narrowing: The dtypes to choose from; ``None`` to narrow none.
        n_bytes: Bytes of a message that is not narrowed, of shape (n_edges,) or with
            more axes.
        bandwidth: Bytes per second of each link, of shape (n_edges,).
        speeds: Speed of the rank of each stage, of shape (n_stages,).
    """
    bandwidth, speeds = (
        values.reshape(-1, *[1] * (n_bytes.ndim - 1)) for values in (bandwidth, speeds)
    )
    if narrowing is None:
        whole = Messages.whole(n_bytes / bandwidth)
        return whole, whole
    sender, receiver, find = speeds[:-1], speeds[1:], narrowing.messages
    return (
        find(True, n_bytes, bandwidth, sender, receiver),
        find(False, n_bytes, bandwidth, receiver, sender),
    )


def costs_of(forward: Messages, backward: Messages) -> dict[str, np.ndarray]:
    """Returns the costs of narrowed messages, by names of `divisible.schedules.Costs`.

    A stage encodes activations for the edge behind it, and decodes those from the edge
    before it. With gradients it is the other way round.
    """
    behind_encode, behind_decode = (
        np.append(seconds, 0.0) for seconds in (forward.encode, backward.decode)
    )
    before_decode, before_encode = (
        np.insert(seconds, 0, 0.0) for seconds in (forward.decode, backward.encode)
    )
    return {
        "transfer_backward": backward.link,
        "coding_forward": behind_encode + before_decode,
        "coding_backward": behind_decode + before_encode,
    }


def message_plans(
    forward: Messages, backward: Messages, whole: np.ndarray
) -> tuple[MessagePlan, ...]:
    """Returns the dtypes of each edge, with reasons.

    Args:
        forward: Messages of activations.
        backward: Messages of gradients.
        whole: Seconds on each link without narrowing.
    """
    found = []
    for edge, seconds in enumerate(whole.tolist()):
        pair = [each.names[each.choice[edge]] for each in (forward, backward)]
        reasons = dict.fromkeys(
            _reason(each, edge, seconds) for each in (forward, backward)
        )
        found.append(MessagePlan(*pair, "; ".join(reasons)))
    return tuple(found)


def _reason(messages: Messages, edge: int, whole: float) -> str:
    """Returns a text about the dtype of an edge in one direction."""
    name = messages.names[messages.choice[edge]]
    if name == WHOLE:
        return (
            f"{WHOLE} takes {format_seconds(whole)}, and coding would save too little"
        )
    coding = messages.encode[edge] + messages.decode[edge]
    link = messages.link[edge]
    return (
        f"{name} takes {format_seconds(link)} and {format_seconds(coding)} of coding,"
        f" {WHOLE} {format_seconds(whole)}"
    )


def _bytes_of_numbers(profile: Profile) -> int:
    """Returns the bytes of a number of a model: 2 if most parameters are float16."""
    sums = profile.sums
    n_elements = sums.gradients[-1]
    return 2 if n_elements and sums.parameters[-1] / n_elements < 3 else 4
