"""How an array will be made: its writes in order.

::

    W = DeferredArray((512, 512), np.float32, seed=0)    Recipe(steps=[])
    W.write(HeNormal())                                  step 0: the whole
    W[:256].write(Orthogonal())                          step 1: a part
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import Any, Callable

import numpy as np

from divisible.deferred.keyed_random import keyed_random

Write = Callable[[np.ndarray], Any]
View = Callable[[np.ndarray], np.ndarray]


class NotMadeError(RuntimeError):
    """Code needs the values of an array that has none yet."""


@dataclasses.dataclass(eq=False)
class Step:
    """One write to an array, or to a part of it.

    Args:
        write: Function that writes, such as an initializer. It is called with the part.
        view: Function that returns the part of the whole array.
        dtype: Dtype of the array when it is written to.
        sources: Recipes of the arrays that ``write`` reads.

    Attributes:
        key (str or None): Key of the random draws. Copies of an array share its steps,
            and so the key and the values.
    """

    write: Write
    view: View
    dtype: np.dtype
    sources: tuple[Recipe, ...] = ()
    key: str | None = None

    def drawing(self) -> AbstractContextManager[None]:
        """Makes the random draws within depend on the key of this write only."""
        if self.key is None:
            raise unreadable("its initializer")
        return keyed_random(self.key, self.write)

    @property
    def is_of_whole(self) -> bool:
        """Whether the whole array is written."""
        return self.view is whole


class Recipe:
    """How to make an array: its writes in order.

    Args:
        shape: Shape of the array.
        dtype: Dtype of the array.
        seed (int): Seed of its random draws, which also depend on the steps' keys.
        steps: The first writes.

    Attributes:
        maker: Function that makes the array in place of :meth:`compute`, for an array
            that must not be in memory as a whole.
        place (str): The place of the array in the model, such as ``'3/W'``. Empty
            before it is known.
    """

    maker: Callable[[Recipe], np.ndarray] | None = None
    place = ""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, seed: int, steps: list[Step]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.seed = seed
        self.steps = steps
        self._made: np.ndarray | None = None

    def make(self) -> np.ndarray:
        """Returns the array. All arrays that share the recipe get the same one."""
        if self._made is None:
            self._made = self.compute() if self.maker is None else self.maker(self)
        return self._made

    def compute(self) -> np.ndarray:
        """Makes a new array.

        Raises:
            OverflowError: If some numbers are too large for a dtype.
        """
        dtypes = [step.dtype for step in self.steps]
        array = np.empty(self.shape, *dtypes[:1] or [self.dtype])
        for step in self.steps:
            array = _converted(array, step.dtype)
            with step.drawing():
                step.write(step.view(array))
        return _converted(array, self.dtype)

    def copied(self, dtype: np.dtype) -> Recipe:
        """Returns a copy of the recipe for another array.

        Args:
            dtype: The dtype of that array.
        """
        copied = Recipe(self.shape, dtype, self.seed, [*self.steps])
        copied.place = self.place
        return copied

    def assign_keys(self, place: str, taken: set[str]) -> None:
        """Gives a key to every step that has none yet.

        Args:
            place (str): The place of the array in the model.
            taken (set): All keys that the model has given. The new ones are added.
        """
        self.place = self.place or place
        for number, step in enumerate(self.steps):
            if step.key is None:
                step.key = new_key(self.seed, place, taken, number)
            for source in step.sources:
                source.assign_keys(f"{place}#{number}<", taken)


def new_key(seed: int, place: str, taken: set[str], number: int = 0) -> str:
    """Returns a key for random draws, which depends on the place of the array.

    A key gets a suffix if it is taken: another array may have had the place before,
    because inserting a layer into a divided model moves all layers behind it.

    Args:
        seed (int): Seed of all draws.
        place (str): The place of the array in the model.
        taken (set): All keys that the model has given. The new one is added.
        number (int): Position of the write among those of the array.
    """
    key = f"{seed}:{place}#{number}"
    while key in taken:
        key += "'"
    taken.add(key)
    return key


def whole(array: np.ndarray) -> np.ndarray:
    """Returns the array itself: the view of the whole array."""
    return array


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if not np.isfinite(converted).all():
        raise OverflowError(
            f"it has numbers that are not finite in {dtype}, whose largest number is"
            f" {np.finfo(dtype).max:g}: draw smaller ones"
        )
    return converted


def unreadable(what: str) -> NotMadeError:
    """Returns the error of an operation that needs values.

    Args:
        what (str): Words for the operation.
    """
    return NotMadeError(
        f"{what} needs values of a parameter that was created in deferred_init and is"
        f" not made yet. Divide the model first: model.divide(start, end) makes the"
        f" layers of a stage, model.divide() all of them. What wants them while the"
        f" model is built, such as a link hook, can be added to the stage's layers then"
    )
