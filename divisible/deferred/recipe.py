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
    """Something needs the values of an array that has none yet."""


@dataclasses.dataclass(eq=False)
class Step:
    """One write to an array: what is written, and to which part.

    Args:
        write: Writes to the part, which it is called with: an initializer.
        view: Takes the part out of the whole array.
        dtype: Dtype that the array has when it is written to.
        sources: Recipes of the arrays that ``write`` reads.

    Attributes:
        key (str or None): Of the random draws. Copies of an array share its steps and
            so the key, and get the same values.
    """

    write: Write
    view: View
    dtype: np.dtype
    sources: tuple[Recipe, ...] = ()
    key: str | None = None

    def drawing(self) -> AbstractContextManager[None]:
        """Makes what is drawn for the write inside depend on its key only."""
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
        shape: Of the array.
        dtype: Of the array.
        seed (int): Of its random draws, together with the steps' keys.
        steps: The first writes.

    Attributes:
        maker: Makes the array from the recipe, if not :meth:`compute`: one that is not
            to be in memory as a whole.
        place (str): The place of the array in the model, such as ``'3/W'``; empty
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
        """Returns the array; all that share the recipe get the same one."""
        if self._made is None:
            self._made = self.compute() if self.maker is None else self.maker(self)
        return self._made

    def compute(self) -> np.ndarray:
        """Makes a new array.

        Raises:
            OverflowError: If it is converted to a dtype that is too small for it.
        """
        dtypes = [step.dtype for step in self.steps]
        array = np.empty(self.shape, *dtypes[:1] or [self.dtype])
        for step in self.steps:
            array = _converted(array, step.dtype)
            with step.drawing():
                step.write(step.view(array))
        return _converted(array, self.dtype)

    def copied(self, dtype: np.dtype) -> Recipe:
        """Returns the same recipe for another array.

        Args:
            dtype: The dtype of that array.
        """
        copied = Recipe(self.shape, dtype, self.seed, [*self.steps])
        copied.place = self.place
        return copied

    def assign_keys(self, place: str, taken: set[str]) -> None:
        """Gives a key to every step that has none yet.

        Args:
            place (str): Where in the model the array is.
            taken (set): All keys that the model has given; gets the new ones.
        """
        self.place = self.place or place
        for number, step in enumerate(self.steps):
            if step.key is None:
                step.key = new_key(self.seed, place, taken, number)
            for source in step.sources:
                source.assign_keys(f"{place}#{number}<", taken)


def new_key(seed: int, place: str, taken: set[str], number: int = 0) -> str:
    """Returns a key for random draws that depends on where they are.

    Another array may have been there before: what is put into a model after it was
    divided moves all behind it.

    Args:
        seed (int): Of all draws.
        place (str): Where in the model the array is.
        taken (set): All keys that the model has given; gets the new one.
        number (int): Of the write to the array.
    """
    key = f"{seed}:{place}#{number}"
    while key in taken:
        key += "'"
    taken.add(key)
    return key


def whole(array: np.ndarray) -> np.ndarray:
    """Returns an array: the view of all of it."""
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
    """Returns the error of something that needs values.

    Args:
        what (str): What needs them.
    """
    return NotMadeError(
        f"{what} needs values of a parameter that was created in deferred_init and is"
        f" not made yet. Divide the model first: model.divide(start, end) makes the"
        f" layers of a stage, model.divide() all of them. What wants them while the"
        f" model is built, such as a link hook, can be added to the stage's layers then"
    )
