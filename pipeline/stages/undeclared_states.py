"""Refuses that a layer begins a microbatch from the state that another one left.

A link that keeps its state in an attribute, as ``L.LSTM`` does, goes on from where its
last call ended. In a pipeline that is another microbatch, of other samples; or the same
one, if its forward runs again::

    serial training   minibatch 0 --h--> minibatch 1 --h--> minibatch 2
    pipeline                  0F0 --h--> 0F1 --h--> 0F2      refused
    h is reset first          0F0        0F1        0F2      nobody reads it

A state is what lies in an attribute before a forward, what a function in the forward
reads, and what is replaced when the forward ends. So a constant that was made in an
earlier call is none, nor is an output that is kept to be looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Callable, NamedTuple

import chainer

from divisible import Divisible
from divisible.random_streams import drawing_layer
from pipeline.stages.kept_values import Slot, owners, slots

_NOTHING = nullcontext()


class UndeclaredStates:
    """Refuses what the layers of a stage keep from one forward to the next.

    What :func:`divisible.carry_state` has declared is in no attribute between forwards
    (:class:`~pipeline.stages.carried_rows.CarriedRows`), and so is none of it.

    The attributes of all links are looked through in some minibatches, after the first
    forward. Only if something is found there, later forwards are watched.

    Args:
        layers (Divisible): The layers of the stage.
        others: Pairs of a path and a link besides, as the loss has them.

    Attributes:
        is_due (bool): Whether attributes are to be looked through after the next
            forward.
        slots (dict): The attributes where something was found.
    """

    def __init__(
        self, layers: Divisible, others: Iterable[tuple[str, Any]] = ()
    ) -> None:
        # By the id of an object its path and itself.
        self._owners: dict[int, tuple[str, Any]] = {}
        for path, owner in (*owners(layers, layers.layer_range[0]), *others):
            self._owners.setdefault(id(owner), (path, owner))
        self._n_layers = len(layers.model_layers)
        self.slots: dict[tuple, Slot] = {}
        # By the id of an object the number of samples, and the ids of its attributes.
        self._seen: dict[int, tuple] = {}
        self.is_due = True
        # The forward before: which microbatch, how many samples, and where it left
        # something that its backward had to go through.
        self._last, self._n_last = -1, 0
        self._with_graph: set[tuple] = set()
        # For training and evaluation, whether unregistered links were looked for.
        self._modes: set[bool] = set()

    @contextmanager
    def watched(self, microbatch: int, n_samples: int) -> Iterator[None]:
        """Checks that a forward begins from no state of another one.

        A minibatch that is not cut may go on from what is left of the one before, as
        in serial training, but not from its graph, which ended with its backward. To be
        called if something is due, or was found.

        Args:
            microbatch (int): Its position in the minibatch.
            n_samples (int): How many samples it has.

        Raises:
            TypeError: If it begins from such a state.
        """
        is_due, self.is_due = self.is_due, False
        is_alone = microbatch == 0 == self._last
        n_before, self._last, self._n_last = self._n_last, microbatch, n_samples
        keys = self.slots.keys()
        if is_alone:
            trains = chainer.config.enable_backprop
            keys = keys & self._with_graph if trains else ()
        left = self._left(keys)
        called = self._called_links() if is_due else _NOTHING
        with called, _refused(left, _BEGINNINGS[is_alone], n_before, n_samples):
            yield
        if is_due:
            self._look(n_samples)
        self._with_graph = {k for k, slot in self.slots.items() if slot.has_graph()}

    def watched_again(self) -> AbstractContextManager:
        """Checks that a forward that runs again finds no state of its own."""
        if not self.slots:
            return _NOTHING
        return _refused(self._left(self.slots), _BEGINS_AGAIN)

    def _left(self, keys: Iterable[tuple]) -> list[_Left]:
        left = []
        for slot in map(self.slots.__getitem__, keys):
            arrays = list(map(weakref.ref, slot.arrays()))
            if arrays:
                left.append(_Left(slot, arrays))
        return left

    def _called_links(self) -> AbstractContextManager:
        if chainer.config.train in self._modes:
            return _NOTHING
        self._modes.add(chainer.config.train)
        return _CalledLinks(self._owners, self._n_layers)

    def _look(self, n_samples: int) -> None:
        """Looks for what this forward has left."""
        for number, (path, owner) in self._owners.items():
            # Most links have the attributes that they had; comparing takes a
            # microsecond.
            present = (n_samples, *map(id, vars(owner).values()))
            if self._seen.get(number) == present:
                continue
            self._seen[number] = present
            for slot in slots(path, owner):
                if slot.is_inside:
                    # It may get there while the attribute stays what it is.
                    self._seen[number] = ()
                if slot.may_be_state(n_samples):
                    self.slots.setdefault((number, slot.keys), slot)


#: By whether a microbatch is a whole minibatch, as the one before was.
_BEGINNINGS = {
    False: (
        "begins from the state that another microbatch left in {path}: every"
        " microbatch is a call of the layer, with other samples"
    ),
    True: (
        "begins from the state that the minibatch before left in {path}, with its"
        " graph, which ended with its backward: call unchain_backward() in the layer's"
        " forward on what it keeps, or do not keep it"
    ),
}
_BEGINS_AGAIN = (
    "runs its forward again, to be recomputed, and begins from the state that it left"
    " itself in {path}"
)


@contextmanager
def _refused(
    left: Sequence[_Left], begins: str, n_before: int = 0, n_samples: int = 0
) -> Iterator[None]:
    """Refuses that a forward reads what was left, and puts something in its place.

    Args:
        left: What was left.
        begins: The beginning of the error's text.
        n_before: The samples of the forward before.
        n_samples: Those of this one.
    """
    if not left:
        yield
        return
    with _Reads(left) as reads:
        try:
            yield
        except Exception as error:
            # Where it would be refused, had the microbatches been equally large.
            for one in left:
                if n_samples != n_before and one.has_rows(n_before):
                    raise _refusal(begins, one.slot) from error
            raise
    for one in reads.found:
        if one.is_replaced():
            raise _refusal(begins, one.slot)


def _refusal(begins: str, slot: Slot) -> TypeError:
    error = TypeError(
        f"the layer {begins.format(path=slot.path)}. Reset it first in the layer's"
        f" forward (reset_state() of L.LSTM and the like), so that every call begins"
        f" anew; or use L.NStepLSTM and the like, which take whole sequences; or, if"
        f" it is to go on from minibatch to minibatch, declare it by carry_state()"
    )
    first = slot.path.lstrip("/").split("/")[0].split(".")[0]
    # A path that begins otherwise is that of the loss.
    error.layer_position = int(first) if first.isdigit() else None
    return error


class _Left(NamedTuple):
    """Arrays that a forward left in a slot.

    Attributes:
        slot: Where.
        arrays: Return them, and do not keep them from being freed.
    """

    slot: Slot
    arrays: list[Callable[[], Any]]

    def is_replaced(self) -> bool:
        """Whether they are not, or not alone, where they were left."""
        present = self.slot.arrays()
        return len(present) != len(self.arrays) or any(
            array() is not there for array, there in zip(self.arrays, present)
        )

    def has_rows(self, n: int) -> bool:
        """Whether one of them has so many."""
        arrays = [array() for array in self.arrays]
        return any(x is not None and x.ndim and len(x) == n for x in arrays)


class _Reads(chainer.FunctionHook):
    """Notes what functions read.

    Args:
        left: What they may read.
    """

    name = "pipeline.UndeclaredStates"
    # Layers that run as one may do so before its eyes.
    minds_fusion = False

    def __init__(self, left: Sequence[_Left]) -> None:
        self._left = {id(array()): (array, one) for one in left for array in one.arrays}
        self.found: list[_Left] = []

    def forward_preprocess(self, function: Any, in_data: Sequence[Any]) -> None:
        """Is called by every function."""
        for x in in_data:
            # A part of an array is a view of it.
            for array in (x, getattr(x, "base", None)):
                known, one = self._left.get(id(array), (None, None))
                if known is not None and known() is array:
                    self.found.append(one)


class _CalledLinks(chainer.LinkHook):
    """Adds links that nobody has registered, such as those in closures and lists.

    Args:
        owners: By their ids pairs of a path and a link; gets those that are called.
        n_layers (int): Of the undivided model; behind them is the loss.
    """

    name = "pipeline.UndeclaredStates"
    # Layers that run as one may do so before its eyes.
    minds_fusion = False

    def __init__(self, owners: dict[int, tuple[str, Any]], n_layers: int) -> None:
        self._owners = owners
        self._n_layers = n_layers

    def forward_preprocess(self, args: Any) -> None:
        """Is called by every link."""
        if id(args.link) not in self._owners:
            position = drawing_layer()
            place = "loss" if position == self._n_layers else position
            path = f"/{place}/{type(args.link).__name__}"
            self._owners[id(args.link)] = path, args.link
