"""Refuses a layer that begins a microbatch from the state of another one.

A link that keeps its state in an attribute, such as ``L.LSTM``, goes on from where its
last call ended. In a pipeline, the last call was another microbatch, of other samples;
or the same one, if its forward runs again::

    serial training   minibatch 0 --h--> minibatch 1 --h--> minibatch 2
    pipeline                  0F0 --h--> 0F1 --h--> 0F2      refused
    h is reset first          0F0        0F1        0F2      nobody reads it

A state is an array that is in an attribute before a forward. A function in the forward
reads it, and by the end of the forward another array has replaced it. So a constant
made in an earlier call is no state, nor is an output kept for inspection.
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
    """Refuses states that the layers of a stage keep from one forward to the next.

    States that :func:`divisible.carry_state` has declared are allowed: they are in no
    attribute between forwards (:class:`~pipeline.stages.carried_rows.CarriedRows`).

    The attributes of all links are searched after the first forward of each minibatch.
    Later forwards are watched only if this finds something.

    Args:
        layers (Divisible): The layers of the stage.
        others: Pairs of a path and a link for further links, such as those of the loss.

    Attributes:
        slots (dict): Attributes in which something was found.
        modes (set): Values of ``chainer.config.train`` with which a forward was
            watched, and unregistered links were searched for.
        attributes (list of dict): The attributes of each object.
        present (list of int or None): Number of samples, and ids of the values of all
            attributes, at the last search; ``None`` if a value, such as a list, may
            change inside.
    """

    def __init__(
        self, layers: Divisible, others: Iterable[tuple[str, Any]] = ()
    ) -> None:
        # Path and object of each owner of attributes, by the object's id.
        self._owners: dict[int, tuple[str, Any]] = {}
        for path, owner in (*owners(layers, layers.layer_range[0]), *others):
            self._owners.setdefault(id(owner), (path, owner))
        self._n_layers = len(layers.model_layers)
        self.slots: dict[tuple, Slot] = {}
        # Number of samples, and ids of attributes, by the id of an object.
        self._seen: dict[int, tuple] = {}
        self.attributes: list[dict[str, Any]] = []
        self.present: list[int] | None = None
        # The forward before: its microbatch, its number of samples, and the slots in
        # which it left arrays with a graph.
        self._last, self._n_last = -1, 0
        self._with_graph: set[tuple] = set()
        self.modes: set[bool] = set()

    @contextmanager
    def watched(
        self, microbatch: int, n_samples: int, is_first: bool
    ) -> Iterator[None]:
        """Checks that a forward does not begin from a state of another one.

        A minibatch that is not cut may go on from the state of the one before, as in
        serial training. It may not go on from the graph of that state, which ended with
        its backward.

        The context is needed if ``slots`` has entries, and in the first forward of each
        mode. After the first forward of any other minibatch, :meth:`search` suffices.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            n_samples (int): Number of samples in the microbatch.
            is_first (bool): Whether this is the first forward of its minibatch.

        Raises:
            TypeError: If the forward begins from such a state.
        """
        is_alone = microbatch == 0 == self._last
        n_before = self._n_last
        keys = self.slots.keys()
        if is_alone:
            trains = chainer.config.enable_backprop
            keys = keys & self._with_graph if trains else ()
        left = self._left(keys)
        called = self._called_links() if is_first else _NOTHING
        with called, _refused(left, _BEGINNINGS[is_alone], n_before, n_samples):
            yield
        if is_first:
            self.search(microbatch, n_samples)
        else:
            self._remember(microbatch, n_samples)

    def watched_again(self) -> AbstractContextManager:
        """Checks that a forward that runs again does not read its own state."""
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
        if chainer.config.train in self.modes:
            return _NOTHING
        self.modes.add(chainer.config.train)
        return _CalledLinks(self._owners, self._n_layers)

    def search(
        self, microbatch: int, n_samples: int, present: list[int] | None = None
    ) -> None:
        """Searches attributes for states that a minibatch's first forward has left.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            n_samples (int): Number of samples in the microbatch.
            present: The next value of :attr:`present`.
        """
        may_change_inside = False
        for number, (path, owner) in self._owners.items():
            # Most links have the same attributes as before.
            own = (n_samples, *map(id, vars(owner).values()))
            if self._seen.get(number) == own:
                continue
            self._seen[number] = own
            for slot in slots(path, owner):
                if slot.is_inside:
                    # A state may be put inside while the attribute stays the same
                    # object.
                    self._seen[number], may_change_inside = (), True
                if slot.may_be_state(n_samples):
                    self.slots.setdefault((number, slot.keys), slot)
        self.attributes = [vars(owner) for _, owner in self._owners.values()]
        self.present = None if may_change_inside else present
        if self.slots:
            self._remember(microbatch, n_samples)

    def _remember(self, microbatch: int, n_samples: int) -> None:
        """Keeps which forward was the last one, and where it left a graph."""
        self._last, self._n_last = microbatch, n_samples
        self._with_graph = {k for k, slot in self.slots.items() if slot.has_graph()}


#: Texts by whether a microbatch, and the one before, are whole minibatches.
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
    """Refuses a forward that reads a state and puts another one in its place.

    Args:
        left: Arrays that the forward before left.
        begins: The beginning of the error's text.
        n_before: Number of samples of the forward before.
        n_samples: Number of samples of this forward.
    """
    if not left:
        yield
        return
    with _Reads(left) as reads:
        try:
            yield
        except Exception as error:
            # This shape error would be the refusal, had the microbatches been of one
            # size.
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
        f" without a state; or use L.NStepLSTM and the like, which take whole"
        f" sequences; or, if it is to go on from minibatch to minibatch, declare it by"
        f" carry_state()"
    )
    first = slot.path.lstrip("/").split("/")[0].split(".")[0]
    # Any other path belongs to the loss.
    error.layer_position = int(first) if first.isdigit() else None
    return error


class _Left(NamedTuple):
    """Arrays that a forward left in a slot.

    Attributes:
        slot: The slot that has them.
        arrays: Weak references to the arrays.
    """

    slot: Slot
    arrays: list[Callable[[], Any]]

    def is_replaced(self) -> bool:
        """Returns whether the slot no longer has exactly these arrays."""
        present = self.slot.arrays()
        return len(present) != len(self.arrays) or any(
            array() is not there for array, there in zip(self.arrays, present)
        )

    def has_rows(self, n: int) -> bool:
        """Returns whether one of the arrays has ``n`` rows."""
        arrays = [array() for array in self.arrays]
        return any(x is not None and x.ndim and len(x) == n for x in arrays)


class _Reads(chainer.FunctionHook):
    """Records the arrays that functions read.

    Args:
        left: Arrays to watch for.
    """

    name = "pipeline.UndeclaredStates"
    # The hook changes no array that it sees, so prepared weights need no checks.
    only_reads = True
    # Layers may run fused: this hook does not need to see each of their functions.
    minds_fusion = False

    def __init__(self, left: Sequence[_Left]) -> None:
        self._left = {id(array()): (array, one) for one in left for array in one.arrays}
        self.found: list[_Left] = []

    def forward_preprocess(self, function: Any, in_data: Sequence[Any]) -> None:
        """Compares the inputs of a function with the arrays."""
        for x in in_data:
            # A part of an array is a view of it.
            for array in (x, getattr(x, "base", None)):
                known, one = self._left.get(id(array), (None, None))
                if known is not None and known() is array:
                    self.found.append(one)


class _CalledLinks(chainer.LinkHook):
    """Adds links that are not registered, such as those in closures and lists.

    Args:
        owners: Pairs of a path and a link, by the link's id; called links are added.
        n_layers (int): Number of layers of the undivided model, the loss's position.
    """

    name = "pipeline.UndeclaredStates"
    # Layers may run fused: this hook does not need to see each of their links.
    minds_fusion = False

    def __init__(self, owners: dict[int, tuple[str, Any]], n_layers: int) -> None:
        self._owners = owners
        self._n_layers = n_layers

    def forward_preprocess(self, args: Any) -> None:
        """Adds the link that is called, with a path."""
        if id(args.link) not in self._owners:
            position = drawing_layer()
            place = "loss" if position == self._n_layers else position
            path = f"/{place}/{type(args.link).__name__}"
            self._owners[id(args.link)] = path, args.link
