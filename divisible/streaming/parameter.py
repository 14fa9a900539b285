"""A parameter whose array, gradient and optimizer state are in mapped files.

::

                     forward        backward            update
    array      W     read           read (gx)           read and written
    gradient   gW                   written, added to   read
    state      m, v                                     read and written

Each pass goes through the segments from the first to the last, reads the next ones
meanwhile, and releases those that it has used. The last part of a gradient may be used
when it is computed. Then the last backward and the update are one pass::

                     forward        last backward and update
    array      W     read           read (gx) and written
    gradient   gW                   read, if there were other parts
    state      m, v                 read and written
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import chainer
import numpy as np

from chainer_kernels.contributions import Contribution, Scratch
from divisible.deferred.array import DeferredArray
from divisible.deferred.recipe import Recipe
from divisible.streaming import initial, updates
from divisible.streaming.errors import StoreError
from divisible.streaming.mapped import MappedArray, parts_of, passing
from divisible.streaming.segment_trial import SegmentTrial
from divisible.streaming.segments import ranges

#: The files of a parameter beside those of its optimizer's state.
ARRAY, GRADIENT = "array", "gradient"


class StreamedParameter(chainer.Parameter):
    """A parameter of which some rows are in memory at a time.

    Args:
        array (DeferredArray): The array, which is not made yet.
        trial (SegmentTrial): The number of rows of a segment.
        directory: Directory of the files.
        what (str): Name of the parameter for errors.

    Attributes:
        trial (SegmentTrial): The number of rows of a segment.
        directory (Path): Directory of the files.
        is_updated (bool): Whether it has been updated before the call of
            :meth:`update` in this minibatch.
        refusal (str or None): Reason why the parameter must not be used any more, with
            the cure; ``None`` if it may be used.
    """

    #: Code that copies the parameters of a model into one array checks for this.
    is_streamed = True

    def __init__(
        self, array: DeferredArray, trial: SegmentTrial, directory: Path, what: str
    ) -> None:
        super().__init__(array)
        # Copies of the parameter that share the array share the trial.
        self.trial, self.directory, self._what = trial, directory, what
        self.is_updated = False
        self.refusal: str | None = None
        self._files: dict[str, MappedArray] = {}
        for step in array.recipe.steps:
            if not step.is_of_whole:
                raise TypeError(
                    f"{what}: a part of it is written by itself, which a streamed"
                    f" parameter cannot be; write to it when it is made"
                )
            initial.check(step.write, array.shape)
        array.recipe.maker = self._make
        self.cleargrad()

    def _make(self, recipe: Recipe) -> np.ndarray:
        """Makes the array, segment by segment."""
        self._what = f"/{recipe.place}, {self._what}"
        array = self.file(ARRAY, recipe.dtype).array
        for step in recipe.steps:
            with step.drawing():
                initial.by_segments(step.write, array, self.passing({ARRAY}))
        return array

    def file(self, name: str, dtype: Any = None) -> MappedArray:
        """Returns a file of this parameter. A new one is full of zeros.

        Args:
            name (str): ``'array'``, ``'gradient'``, or a name in the optimizer's state.
            dtype: Dtype of a new file, by default the parameter's.

        Raises:
            StoreError: If there is no room for the file, for example.
        """
        if name not in self._files:
            self._files[name] = MappedArray(
                self.shape,
                self.dtype if dtype is None else dtype,
                self.directory,
                f"{self._what}, {name}",
            )
        return self._files[name]

    def is_file(self, name: str, array: Any) -> bool:
        """Returns whether an array is the one of the named file."""
        return name in self._files and self._files[name].array is array

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yields the first row of each segment, and the one behind the last."""
        return ranges(self.shape[0], self.trial.rows)

    def passing(
        self, written: set[str], read: set[str] = frozenset()
    ) -> Iterator[tuple[int, int]]:
        """Yields the segments of a pass, which are fetched ahead and released.

        Args:
            written: Names of the files that are written to.
            read: Names of the files that are only read.

        Raises:
            StoreError: If an update has failed.
        """
        self.check_usable()
        files = {self.file(name): name in written for name in (*read, *written)}
        return passing(self.segments(), files)

    def check_usable(self) -> None:
        """Checks that no update of this parameter has failed.

        Raises:
            StoreError: If one has, with the text of :attr:`refusal`.
        """
        if self.refusal is not None:
            raise StoreError(self.refusal)

    def note_failed_update(self) -> None:
        """Forbids any further use, because only some rows may have been updated."""
        self.refusal = (
            f"an update of {self._what} has failed, and some of its rows may be"
            f" updated already: make the model, its optimizers and the Pipeline again,"
            f" and load a snapshot"
        )

    def timed_pass(
        self, written: set[str], read: set[str] = frozenset()
    ) -> Iterator[tuple[int, int]]:
        """Yields the segments of :meth:`passing`, and times the pass for the trial."""
        with self.trial.timing():
            yield from self.passing(written, read)

    def new_gradient(self) -> np.ndarray:
        """Returns the array for the gradient, always the same one."""
        return self.file(GRADIENT).array

    def zero_gradient(self) -> None:
        """Sets the gradient, in its file, to zero; optimizers then find no gradient."""
        self.grad = self.new_gradient()
        for start, stop in self.passing({GRADIENT}):
            self.grad[start:stop] = 0

    @staticmethod
    def parts_of(array: np.ndarray, written: bool = False) -> Iterator[np.ndarray]:
        """Yields a few MiB of the array, or of the gradient, at a time.

        Callers that have only the parameter use this.

        Args:
            array: The array, or the gradient.
            written (bool): Whether the parts are written to.
        """
        return parts_of(array, written)

    def note_gradient(self) -> None:
        """Records that other code has written to the gradient, and releases it."""
        if self.is_file(GRADIENT, self.grad):
            self.file(GRADIENT).release(0, self.shape[0], written=True)

    def new_state(self, dtypes: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns arrays full of zeros for an optimizer's state.

        Args:
            dtypes: The dtype of each array, by name.
        """
        # Files of another optimizer's state are dropped.
        self._files = {
            name: file
            for name, file in self._files.items()
            if name in (ARRAY, GRADIENT)
        }
        return {name: self.file(name, dtype).array for name, dtype in dtypes.items()}

    def begin_state(self) -> None:
        """Gives the update rule its state in files, if it has none in files.

        Raises:
            TypeError: If the rule is not elementwise.
        """
        updates.states_of(self.update_rule, self)

    @property
    def can_be_updated_early(self) -> bool:
        """Whether the gradient need not be in a file."""
        rule = self.update_rule
        return rule is not None and rule.enabled and self._loss_scale is None

    def update_early(
        self, share: Callable[[slice], Contribution], known: np.ndarray | None
    ) -> None:
        """Updates segment by segment, while the last part of the gradient is computed.

        The gradient is not kept. The next call of :meth:`update` does nothing.

        Args:
            share: Function that returns the last part of the gradient for some rows. It
                is called before these rows are updated.
            known: The array of :meth:`new_gradient`, with the sum of earlier parts;
                ``None`` if there are none.

        Raises:
            TypeError: If the rule is not elementwise.
        """
        states = updates.states_of(self.update_rule, self)
        rows_of_room = min(self.trial.rows, self.shape[0])
        room = np.empty((rows_of_room, *self.shape[1:]), self.dtype)
        scratch = Scratch()

        def gradient(rows: slice) -> np.ndarray:
            out = room[: rows.stop - rows.start]
            part = share(rows)
            if known is None:
                part.write(out)
            else:
                out[...] = known[rows]
                part.add(out, scratch)
            return out

        read = set() if known is None else {GRADIENT}
        passing = self.timed_pass({ARRAY, *states}, read)
        updates.update(self.update_rule, self, states, passing, gradient, None)
        self.is_updated = True

    def use_again(self) -> None:
        """Withdraws the refusal, and forgets an early update: the array was loaded."""
        self.refusal = None
        if self.is_updated:
            self.is_updated = False
            # The update of other parameters may follow, and this gradient is NaN.
            self.cleargrad()

    def no_gradient(self) -> np.ndarray:
        """Returns NaN in the parameter's shape, for ``grad`` after `update_early`.

        If ``grad`` were ``None``, an optimizer would make an array of zeros.
        """
        return np.broadcast_to(np.array(np.nan, self.dtype), self.shape)

    def update(self, factor: float | None = None) -> None:
        """Updates segment by segment with the update rule, unless that has been done.

        Args:
            factor (float or None): Factor of the gradients that the rule and its hooks
                get; ``param.grad`` stays scaled. With ``None`` the rule divides
                ``param.grad`` by its loss scale, as in Chainer.

        Raises:
            TypeError: If the rule is not elementwise.
        """
        if not self.is_updated:
            self._update(factor)
        self.is_updated = False
        self.trial.end_minibatch()

    def _update(self, factor: float | None) -> None:
        rule = self.update_rule
        if rule is None or not rule.enabled:
            return
        if self.grad is None:
            # Chainer's rules do the same: only their own count goes on.
            rule.t += 1
            return
        gradient = {GRADIENT} if self.is_file(GRADIENT, self.grad) else set()
        states = updates.states_of(rule, self)
        written = {ARRAY, *states}
        divides = factor is None and self._loss_scale is not None
        if divides or self._shows_gradient(rule, factor):
            written |= gradient
        passing = self.timed_pass(written, gradient - written)
        updates.update(rule, self, states, passing, *self._gradient(factor))

    def _gradient(
        self, factor: float | None
    ) -> tuple[Callable[[Any], np.ndarray], float | None]:
        """Returns a function for the gradient of rows, and its remaining loss scale."""
        gradient = self.grad
        if factor is None:
            return gradient.__getitem__, self._loss_scale
        if factor == 1:
            return gradient.__getitem__, None
        number = gradient.dtype.type(factor)
        return lambda rows: gradient[rows] * number, None

    @staticmethod
    def _shows_gradient(rule: chainer.UpdateRule, factor: float | None) -> bool:
        """Returns whether an update may change gradients that are zero."""
        return factor in (None, 1) and updates.may_write_gradients(rule)

    def to_device(self, device: Any) -> None:
        """Refuses any device but the host's processor.

        Raises:
            StoreError: For a GPU.
        """
        device = chainer.get_device(device)
        if device.xp is not np:
            raise StoreError(
                f"{self._what}: a streamed parameter is in a file that the processor"
                f" maps, and cannot go to {device}"
            )

    def __copy__(self) -> StreamedParameter:
        ret = self._copy_to(type(self).__new__(type(self)))
        ret._files = dict(self._files)
        return ret

    def __deepcopy__(self, memo: Any) -> StreamedParameter:
        array = self.raw_array
        if not isinstance(array, DeferredArray):
            raise StoreError(
                f"{self._what}: a streamed parameter is larger than memory, and is not"
                f" copied once it is made; copy, or profile, the model before divide()"
            )
        # The copy will be made in its own files, with the same values.
        trial = copy.deepcopy(self.trial)
        ret = type(self)(array.copy(), trial, self.directory, self._what)
        ret.name, ret.initializer = self.name, self.initializer
        return memo.setdefault(id(self), ret)

    __reduce__ = None
