"""The declared states of a stage's layers, of all samples of a minibatch.

::

    between minibatches    h of samples 0 1 2 3 4 5 6 7      a persistent value
    microbatch 0           0 1 2      lstm.h before, and after
    microbatch 1           3 4 5
    microbatch 2           6 7
    between minibatches    0 1 2 3 4 5 6 7                    put together again

So the next minibatch may have another number of microbatches. A forward that runs
again, to be recomputed, begins from the same rows and leaves none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple

import chainer

from divisible import Divisible
from divisible.carried_state import carrying, declared, place_of


class _State(NamedTuple):
    """An attribute with a declared state.

    Attributes:
        path: Path of the attribute, for errors.
        link: Link that has the attribute.
        name: Name of the attribute.
        axis: Axis of the state along which samples lie.
    """

    path: str
    link: chainer.Link
    name: str
    axis: int

    def refusal(self, words: str) -> ValueError:
        """Returns an error about this state, with its path and its layer."""
        error = ValueError(f"{self.path} {words}")
        error.layer_position = int(self.path.split("/")[1].split(".")[0])
        return error

    def rows(self, array: Any, start: int, stop: int | None) -> Any:
        """Returns the part of an array that belongs to some samples."""
        return array[(slice(None),) * self.axis + (slice(start, stop),)]


class CarriedRows:
    """The states of layers that :func:`divisible.carry_state` has declared.

    Args:
        layers (Divisible): The layers of a stage.

    Attributes:
        is_used (bool): Whether a layer of the stage has declared a state.
    """

    def __init__(self, layers: Divisible) -> None:
        self._states = [
            _State(f"{path}.{name}", link, name, axis)
            for path, link in carrying(layers, layers.layer_range[0])
            for name, axis in declared(link).items()
        ]
        self.is_used = bool(self._states)
        # States of evaluation, by number; the links themselves have those of training.
        self._evaluated: dict[int, Any] = {}
        self._trains = True
        # The states that this minibatch begins from; the number of samples of each
        # microbatch; and the states that each microbatch has left.
        self._before: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._after: dict[int, dict[int, Any]] = {}
        # Rows of a state per sample of x: earlier layers may join samples, or split
        # them. The ratio is known for the first stage, and for others once they have
        # been called.
        self._per_sample = Fraction(1) if layers.layer_range[0] == 0 else None
        # Other ranks know no path for a state declared after the model had been cut.
        self._named = frozenset(layers.carried_states)

    def saw(self, n_inputs: int) -> None:
        """Records how many samples ``x`` had in the minibatch that ends."""
        if n_inputs > 0 and self._sizes:
            self._per_sample = Fraction(sum(self._sizes.values()), n_inputs)

    def fewest(self, trains: bool, n_trained: int = 0) -> tuple[int, str] | None:
        """Returns the most samples of ``x`` that the next minibatch may have.

        Args:
            trains (bool): Whether the next minibatch is a training step.
            n_trained (int): Number of samples of ``x`` that the training states belong
                to, if other stages or an earlier run left them; 0 if not known.

        Returns:
            tuple or None: The number, and the path of a link whose state sets it, out
                of the model's ``carried_states``. ``None`` if all layers begin without
                a state, or if the number is not known.
        """
        if self._per_sample is None and not (trains and n_trained):
            return None
        if not trains and not self._trains:
            self.finish()
        found = []
        for i, state in enumerate(self._states):
            kept = self._kept(i) if trains else self._evaluated.get(i)
            path = state.path.rpartition(".")[0]
            if kept is not None and path in self._named:
                found.append((self._n_samples(kept.shape[state.axis], n_trained), path))
        return min(found, default=None)

    def _n_samples(self, n_rows: int, n_trained: int) -> int:
        """Returns how many samples of ``x`` the rows of a state belong to."""
        return n_trained if self._per_sample is None else n_rows // self._per_sample

    def begin(self, trains: bool) -> None:
        """Begins a minibatch.

        Args:
            trains (bool): Whether it is a training step. An evaluation after one begins
                without a state.
        """
        if not self._trains:
            self.finish()
        self._trains = trains
        if trains:
            self._evaluated = {}
            self._before = {i: self._kept(i) for i in range(len(self._states))}
        else:
            self._before = self._evaluated
        self._sizes, self._after = {}, {}

    def finish(self) -> None:
        """Ends a minibatch: the next one begins from the states that it left."""
        if not self._sizes:
            return
        found = {i: self._together(i) for i in range(len(self._states))}
        self._sizes, self._after = {}, {}
        if not self._trains:
            self._evaluated = found
            return
        for i, state in enumerate(self._states):
            setattr(state.link, place_of(state.name), found[i])

    def _together(self, i: int) -> Any:
        """Returns the state of all samples, joined from the microbatches."""
        state, before = self._states[i], self._before.get(i)
        left = [self._after[microbatch].get(i) for microbatch in sorted(self._after)]
        n_without = sum(each is None for each in left)
        if n_without == len(left):
            return None
        if n_without:
            raise state.refusal(
                "was left by some microbatches and not by others: a layer"
                " that carries a state must leave one at each call, or at none"
            )
        n_samples = sum(self._sizes.values())
        # The rows of samples that this minibatch did not have stay as they were.
        if before is not None and before.shape[state.axis] > n_samples:
            left.append(state.rows(before, n_samples, None))
        xp = chainer.backend.get_array_module(left[0])
        return xp.concatenate(left, axis=state.axis)

    def reset(self, of_training: bool) -> None:
        """Drops the states, so that the next minibatch begins without any.

        Args:
            of_training (bool): Whether to drop the states of training too, not only
                those of evaluation.
        """
        self._evaluated, self._sizes, self._after = {}, {}, {}
        for state in self._states if of_training else ():
            setattr(state.link, place_of(state.name), None)

    @contextmanager
    def carried(self, microbatch: int, n_samples: int) -> Iterator[None]:
        """Gives a forward the states of its samples, and collects what it leaves.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            n_samples (int): Number of samples in the microbatch.

        Raises:
            ValueError: If the state belongs to fewer samples.
        """
        if any(other > microbatch for other in self._sizes):
            raise RuntimeError(
                f"microbatch {microbatch} comes after {max(self._sizes)}: layers that"
                f" carry a state need a schedule with microbatches in their order"
            )
        self._sizes[microbatch] = n_samples
        self._put(microbatch)
        yield
        left = {}
        for i, state in enumerate(self._states):
            array = chainer.as_array(getattr(state.link, state.name))
            setattr(state.link, state.name, None)
            if array is None:
                continue
            n = array.shape[state.axis] if array.ndim > state.axis else None
            if n != n_samples:
                raise state.refusal(
                    f"has the shape {array.shape} after a microbatch of"
                    f" {n_samples} samples: declare along which axis they are,"
                    f" carry_state(link, names, axis)"
                )
            left[i] = array
        self._after[microbatch] = left

    @contextmanager
    def again(self, microbatch: int) -> Iterator[None]:
        """Gives a forward that runs again the state that it had."""
        self._put(microbatch)
        yield
        for state in self._states:
            setattr(state.link, state.name, None)

    def _put(self, microbatch: int) -> None:
        start = sum(n for m, n in self._sizes.items() if m < microbatch)
        stop = start + self._sizes[microbatch]
        for i, state in enumerate(self._states):
            before, value = self._before.get(i), None
            if before is not None:
                if before.shape[state.axis] < stop:
                    raise state.refusal(
                        f"is the state of {before.shape[state.axis]} samples, and this"
                        f" minibatch has {stop} at least: give minibatches of one size,"
                        f" or call reset_states() on every rank before"
                    )
                rows = state.rows(before, start, stop)
                value = chainer.Variable(rows, requires_grad=False)
            setattr(state.link, state.name, value)

    def _kept(self, i: int) -> Any:
        return getattr(self._states[i].link, place_of(self._states[i].name))
