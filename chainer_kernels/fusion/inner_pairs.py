"""Links in a marked layer of which one normalizes what the other returns.

The layer's ``forward`` is the user's, so it is watched once for each shape of its
inputs::

    conv(x)  ->  y  ->  norm(y)     a pair: each called once, and y used by nothing else

In other calls the first of a pair computes both, and the second returns what it gets.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.fusion.folding import are_pair, folded
from chainer_kernels.fusion.heads import nobody_looks

#: A layer whose inputs have more shapes than this is called as it is with further ones.
_MOST_SHAPES = 64


class Pair(NamedTuple):
    """A convolution or ``Linear``, and the normalization of what it returns."""

    layer: chainer.Link
    norm: chainer.Link


#: By layer and shapes of the inputs, in use with the layer.
_found: weakref.WeakKeyDictionary[chainer.Link, dict[tuple, tuple[Pair, ...]]] = (
    weakref.WeakKeyDictionary()
)


def run(link: chainer.Link, inputs: Sequence[Any]) -> tuple[Any] | None:
    """Calls a link that is marked, with the pairs in it folded.

    Args:
        link: The link, which does the same in every call and has no other effect.
        inputs: What it is given.

    Returns:
        What it returns; or ``None`` where there is no pair, or it does not keep that
        promise, or fails; or where links in it have hooks, or weights yet to be drawn.
    """
    known = _found.setdefault(link, {})
    shapes = tuple(getattr(x, "shape", None) for x in inputs)
    pairs = known.get(shapes)
    if pairs == ():
        return None
    inside = {*link.links()}
    if any(each._n_local_link_hooks for each in inside):
        return None
    if pairs is None or not inside.issuperset(itertools.chain(*pairs)):
        # What draws its weights does so in a call that counts.
        is_drawn = all(param.is_initialized for param in link.params())
        if len(known) >= _MOST_SHAPES or not is_drawn:
            return None
        try:
            pairs = known[shapes] = _watched(link, inputs, inside)
        except Exception:
            # Whoever calls the layer gets to see it, with its position.
            return None
        if not pairs:
            return None
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_as_one(pair)) for pair in pairs]
        y = link(*inputs)
    if all(each.is_whole() for each in runs):
        return (y,)
    known[shapes] = ()
    return None


class _Run:
    """The calls of a pair, of which the first one may compute both."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._one, self._other = pair.layer.forward, pair.norm.forward
        self._folded: chainer.Variable | None = None
        self._calls: list[str] = []

    def layer(self, x: Any) -> chainer.Variable:
        """Stands for the ``forward`` of the first."""
        y = self._folded = folded(*self._pair, x)
        self._calls.append("apart" if y is None else "folded")
        return self._one(x) if y is None else y

    def norm(self, y: Any, **options: Any) -> chainer.Variable:
        """Stands for that of the second."""
        if "folded" not in self._calls:
            self._calls.append("normalized")
            return self._other(y, **options)
        self._calls.append("passed" if y is self._folded else "another")
        # The next layers take its memory.
        self._folded = None
        return y

    def is_whole(self) -> bool:
        """Whether each was called once, and the second with what the first returned."""
        return self._calls in (["folded", "passed"], ["apart", "normalized"])


@contextlib.contextmanager
def _as_one(pair: Pair) -> Iterator[_Run]:
    """Lets the first of a pair compute both, while a block runs."""
    found = _Run(pair)
    vars(pair.layer)["forward"], vars(pair.norm)["forward"] = found.layer, found.norm
    try:
        yield found
    finally:
        del vars(pair.layer)["forward"], vars(pair.norm)["forward"]


class _Calls(chainer.LinkHook):
    """Notes which links are called, with what, and what they return."""

    name = "chainer_kernels.inner_pairs"

    def __init__(self) -> None:
        self.n: Counter[chainer.Link] = Counter()
        self.inputs: list[tuple[chainer.Link, Any]] = []
        self.outputs: list[tuple[chainer.Link, Any]] = []

    def forward_preprocess(self, args: Any) -> None:
        """Is called by every link."""
        self.n[args.link] += 1
        self.inputs += [(args.link, x) for x in args.args[:1]]

    def forward_postprocess(self, args: Any) -> None:
        """Is called by every link."""
        self.outputs.append((args.link, args.out))


class _Uses(chainer.FunctionHook):
    """Counts how many functions use an array."""

    name = "chainer_kernels.inner_pairs"

    def __init__(self) -> None:
        self.n: Counter[int] = Counter()
        # So that no two have one id.
        self._arrays: list[Any] = []

    def forward_preprocess(self, function: Any, in_data: Sequence[Any]) -> None:
        """Is called by every function."""
        self.n.update(map(id, in_data))
        self._arrays += in_data


def _watched(
    link: chainer.Link, inputs: Sequence[Any], inside: set[chainer.Link]
) -> tuple[Pair, ...]:
    """Calls a link, and returns its pairs of links that are registered in it."""
    state = np.random.get_state(legacy=False)
    calls, uses = _Calls(), _Uses()
    try:
        with nobody_looks([link]), calls, uses:
            y = link(*inputs)
    finally:
        # A trial draws as if it did not.
        np.random.set_state(state)
    returned = {id(each) for each in (y if isinstance(y, tuple) else (y,))}
    return tuple(
        Pair(first, second)
        for first, output in calls.outputs
        for second, x in calls.inputs
        if x is output
        and are_pair(first, second)
        and {first, second} <= inside
        and calls.n[first] == calls.n[second] == uses.n[id(x.array)] == 1
        and id(x) not in returned
    )
