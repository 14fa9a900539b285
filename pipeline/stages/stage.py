"""One stage's computations on microbatches: forward and backward.

Communication is outside of autograd: a stage turns arrays into arrays. A stage whose
layers are partly marked to be recomputed consists of several *segments*, which hand
tensors to each other as stages do::

    layers     0    1    2    3    4    5          recompute=True for 2 and 3
    segments   '-- 0 --' '-- 1 --' '-- 2 --'
    held       graph     inputs    graph           between F and B
               inputs    inputs    inputs          between F and R
               graph     inputs    graph           between R and B

Where no backward follows, all layers are one segment, and nothing is held.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import chainer
import numpy as np
from chainer.function_hook import FunctionHook

from divisible import Divisible, RandomKey, keyed_random_state
from divisible.backward.weight_gradients import WeightGradients
from divisible.communication.signatures import Tensors, check_plain
from pipeline.stages.batch_statistics import NORMALIZING, BatchStatistics, discarded
from pipeline.stages.carried_rows import CarriedRows
from pipeline.stages.held import Graph, Inputs
from pipeline.stages.loss import Loss
from pipeline.stages.reports import Reports
from pipeline.stages.segment import Segment, completing, segments_of
from pipeline.stages.stage_skips import StageSkips
from pipeline.stages.uncalled import Uncalled
from pipeline.stages.undeclared_states import UndeclaredStates

_NOTHING = nullcontext()
_params, _values = operator.methodcaller("params"), operator.methodcaller("values")


class Stage:
    """Runs the layers of one stage.

    A message without tensors stands for a microbatch without samples. It passes
    through, and no layer is called.

    Args:
        layers (Divisible): The layers.
        loss (Loss or None): On the last stage, what follows the layers.
        seed (int): Seed of the layers' random numbers, which also depend on the numbers
            of the minibatch, the microbatch and the layer.
        defer_batch_statistics (bool): Whether running averages move once per minibatch,
            rather than once per microbatch.
        n_microbatches_before (int): Number of this minibatch's microbatches that
            earlier replicas have; random numbers depend on it.
        gather: ``gather(value)`` returns the values that the stage has in every
            replica; ``None`` if there is only one replica.
        recomputed: Runs of layers that are recomputed as if they were marked, each by
            its first position and the one after its last.
        skips (StageSkips or None): Routes of skip connections of the stage.

    Attributes:
        reports (Reports): Values that the layers reported in the last minibatch.
        carried (CarriedRows): The states that layers carry from minibatch to minibatch.
        statistics (BatchStatistics or None): The deferred running averages, if any.
        uncalled (Uncalled): The layers, and the loss, that were not called yet.
    """

    make_gradients = WeightGradients

    def __init__(
        self,
        layers: Divisible,
        loss: Loss | None = None,
        seed: int = 0,
        defer_batch_statistics: bool = True,
        n_microbatches_before: int = 0,
        gather: Callable[[Any], list] | None = None,
        recomputed: Sequence[tuple[int, int]] = (),
        skips: StageSkips | None = None,
    ) -> None:
        self.layers, self.loss = layers, loss
        self._seed, self._n_microbatches_before = seed, n_microbatches_before
        self._step = 0
        of_loss = loss.links.values() if loss is not None else ()
        self._outermost = [*layers.children(), *of_loss]
        weights = self._weight_gradients = self.make_gradients(self.params)
        self._complete: Callable[[chainer.Parameter], None] = _nothing
        # Whether the caller asks which gradients the last microbatch completes.
        self._is_told = False
        # Number of backwards that still add to gradients in this minibatch.
        self._n_backwards = 0
        self.statistics: BatchStatistics | None = None
        if defer_batch_statistics:
            self.statistics = BatchStatistics(layers.links, gather)
            self._first_look = _FirstLook(self.statistics)
        # Whether the next forward is the first one of its minibatch.
        self._is_first = True
        self.reports = Reports(self._observers())
        self.uncalled = Uncalled(layers, loss)
        self._skips = skips or StageSkips.alone(layers)
        leaving = self._skips.names
        self._segments = segments_of(
            layers, weights, loss, self._again, recomputed, leaving
        )
        # For forwards without a backward, where marks to recompute do not matter.
        self._whole = Segment(
            layers, weights, loss, False, self._again, leaving=leaving
        )
        self._undeclared = UndeclaredStates(layers, loss.namedlinks() if loss else ())
        self.carried = CarriedRows(layers)

    def params(self) -> Iterator[chainer.Parameter]:
        """Returns the parameters of the layers and the loss, with repetitions."""
        return itertools.chain.from_iterable(map(_params, self._outermost))

    def _observers(self) -> Iterator[tuple[str, chainer.Link]]:
        of_loss = () if self.loss is None else self.loss.namedlinks()
        return itertools.chain(self.layers.namedlinks(), of_loss)

    def begin(
        self,
        step: int,
        n_microbatches: int = 0,
        complete: Callable[[chainer.Parameter], None] | None = None,
        is_updated_early: Callable[[chainer.Parameter], bool] | None = None,
    ) -> None:
        """Begins a minibatch, with no gradients and no microbatches.

        Args:
            step (int): Number of minibatches before this one.
            n_microbatches (int): Number of microbatches in this minibatch, empty ones
                included.
            complete: Called with some of the parameters, as the last microbatch
                completes their gradients; :meth:`take` then returns these gradients.
            is_updated_early: Returns whether the last microbatch updates a parameter
                itself, instead of completing its gradient.
        """
        self._step = step
        self._n_backwards, self._complete = n_microbatches, complete or _nothing
        self._weight_gradients.is_updated_early = is_updated_early
        self._is_told = complete is not None or is_updated_early is not None
        self.reports.values = []
        self._is_first = True
        trains = chainer.config.enable_backprop
        if self.carried.is_used:
            self.carried.begin(trains)
        if not trains:
            # Gradients and averages of an unfinished training minibatch must stay.
            return
        self._weight_gradients.begin()
        if (known := self.statistics) and (known.is_needed or known.is_shared):
            known.begin()
        for segment in self._segments:
            segment.begin()

    def check_gradients(self) -> None:
        """Refuses gradients that no optimizer here would see.

        Raises:
            ValueError: If a layer used a parameter of another stage.
        """
        for param in self._weight_gradients.others:
            path = self.layers.path_elsewhere(param)
            if path is not None:
                start, end = self.layers.layer_range
                raise ValueError(
                    f"the stage of the layers {start} to {end - 1} uses {path}, a"
                    f" parameter of another stage, whose optimizer will not see the"
                    f" gradient. Tie it to a parameter of a layer here (Divisible.tie),"
                    f" or cut so that both are in one stage"
                )

    def take(self, param: chainer.Parameter) -> Any:
        """Returns a complete gradient, which :meth:`finish` then leaves out."""
        return self._weight_gradients.take(param)

    def n_parts(self, param: chainer.Parameter) -> int:
        """Returns how many contributions have been added to a gradient so far."""
        return self._weight_gradients.n_parts(param)

    def finish(self, loss_scale: float | None = None, correction: float = 1.0) -> None:
        """Ends a minibatch: sets ``param.grad`` and moves running averages.

        Args:
            loss_scale (float or None): Factor by which the gradients are multiplied
                already.
            correction (float): Factor by which to multiply the gradients now.
        """
        self._weight_gradients.finish(correction, loss_scale)
        if (known := self.statistics) and (known.is_needed or known.is_shared):
            known.finish()
        if self.carried.is_used:
            self.carried.finish()

    def forward(
        self,
        microbatch: int,
        inputs: Tensors,
        skipped: Mapping[str, Tensors],
        is_recomputed: bool = False,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Runs the layers on one microbatch (F), or on a :class:`.groups.Group`.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            inputs: Tensors from the stage before, or the user's input.
            skipped: Tensors that skip connections bring from earlier stages, by name.
            is_recomputed (bool): Whether :meth:`recompute` is called before the
                backward. Only the inputs are held until then.

        Returns:
            The outputs as tensors, empty if the loss has used them; and the tensors
            that skip connections take to later stages, by name.
        """
        if not inputs:
            return (), dict.fromkeys(self._skips.leaving, ())
        skipped = self._skips.taken(skipped) if skipped else {}
        shape = inputs[0].array.shape
        n_samples = shape[0] if shape else 1
        is_first, self._is_first = self._is_first, False
        statistics = states = carried = _NOTHING
        trains, known = chainer.config.enable_backprop, self.statistics
        if known is not None and trains and (is_first or known.is_needed):
            statistics = known if known.is_needed else self._first_look
        undeclared = self._undeclared
        is_new = is_first and chainer.config.train not in undeclared.modes
        if undeclared.slots or is_new:
            states = undeclared.watched(microbatch, n_samples, is_first)
        if self.carried.is_used:
            carried = self.carried.carried(microbatch, n_samples)
        random, reported = self._random_state(microbatch), {}
        reports = self.reports.reporter.scope(reported)
        with random, reports, statistics, states, carried:
            for segment in self._segments if trains else [self._whole]:
                taken = {}
                for name in segment.takes:
                    taken[name] = skipped.pop(name)
                inputs, handed_over = segment.forward(
                    microbatch, inputs, taken, is_recomputed
                )
                skipped.update(handed_over)
        if is_first and states is _NOTHING:
            values = itertools.chain.from_iterable(map(_values, undeclared.attributes))
            present = [n_samples, *map(id, values)]
            if present != undeclared.present:
                undeclared.search(microbatch, n_samples, present)
        if reported:
            self.reports.values.append((n_samples, reported))
        return inputs, self._skips.handed_over(skipped) if skipped else {}

    @property
    def keeps_states(self) -> bool:
        """Whether a layer may keep a state in an attribute."""
        return bool(self._undeclared.slots)

    def links(self) -> Iterator[chainer.Link]:
        """Returns the links of the layers and of the loss."""
        return (link for _, link in self._observers())

    def held(self, microbatch: int) -> Iterator[dict[int, Graph | Inputs]]:
        """Yields the dictionaries with what is held of a microbatch, by segment.

        A caller that takes an entry out must put it back before the stage recomputes
        this microbatch or runs its backward.
        """
        for segment in self._segments:
            if segment.holds(microbatch):
                yield segment.held

    def recompute(self, microbatch: int) -> None:
        """Runs the forward of one microbatch again, for its backward (R).

        Layers that are marked to be recomputed do this in their own backward.
        """
        for segment in self._segments:
            if not segment.is_recomputed:
                segment.recompute(microbatch)

    def backward(
        self,
        microbatch: int,
        gradients: Tensors,
        skip_gradients: Mapping[str, Tensors],
        split: bool = False,
        n_microbatches: int = 1,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Runs the backward of one microbatch: whole (B), or input gradients only (I).

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            gradients: One tensor per output, from the stage after; ignored on the
                last stage, whose loss starts the backward.
            skip_gradients: Gradients of the tensors that skip connections took, by
                name.
            split (bool): Whether to leave the weight gradients to
                :meth:`backward_weight`, and to hold what they need.
            n_microbatches (int): Number of microbatches, more than 1 for a group.

        Returns:
            One tensor per input: its gradient, or ``None`` as its array where there is
            none; and the gradients of the tensors that skip connections brought, by
            name.
        """
        self._n_backwards -= 0 if split else n_microbatches
        if not self._segments[0].holds(microbatch):
            return (), dict.fromkeys(self._skips.entering, ())
        skip_gradients = self._skips.added_up(skip_gradients) if skip_gradients else {}
        is_last = not (split or self._n_backwards)
        between = [*gradients]
        for segment in self._from_last(is_last):
            given = {}
            for name in segment.hands_over:
                given[name] = skip_gradients.pop(name)
            between, taken = segment.backward(microbatch, between, given, split)
            skip_gradients.update(taken)
        gradients = tuple(between)
        for gradient, *_ in itertools.chain(gradients, *skip_gradients.values()):
            if gradient is not None and type(gradient) is not np.ndarray:
                check_plain(gradient, "plain gradients pass between stages, but one is")
        return gradients, skip_gradients and self._skips.returned(skip_gradients)

    def backward_weight(self, microbatches: Sequence[int]) -> None:
        """Adds the weight gradients of some microbatches (W), in their order."""
        self._n_backwards -= len(microbatches)
        for segment in self._from_last(is_last=not self._n_backwards):
            segment.backward_weight(microbatches)

    def pending_bytes(self) -> int:
        """Returns the bytes that microbatches hold for their weight gradients (W)."""
        weights = {id(param.array) for param in self.params()}
        arrays = itertools.chain(*(each.pending_arrays() for each in self._segments))
        found = {id(array): array.nbytes for array in arrays}
        return sum(n for key, n in found.items() if key not in weights)

    def _from_last(self, is_last: bool) -> Iterable[Segment]:
        """Returns the segments in the order of a backward.

        Args:
            is_last (bool): Whether this backward completes weight gradients.
        """
        if is_last and self._is_told:
            return completing(self._segments, self._weight_gradients, self._complete)
        return self._segments[::-1]

    @contextmanager
    def _again(self, microbatch: int) -> Iterator[None]:
        """Returns the context in which a forward runs again, as it ran before."""
        known = self.statistics
        statistics = discarded() if known is not None and known.is_needed else _NOTHING
        states, carried = self._undeclared.watched_again(), _NOTHING
        if self.carried.is_used:
            carried = self.carried.again(microbatch)
        random, reports = self._random_state(microbatch), self.reports.reporter.scope
        with random, reports({}), statistics, states, carried:
            yield

    def random_key(self, microbatch: int) -> RandomKey:
        """Returns the key of a microbatch's random numbers."""
        number = self._n_microbatches_before + microbatch
        return RandomKey(self._seed, self._step, number, chainer.config.train)

    def _random_state(self, microbatch: int) -> AbstractContextManager:
        unsized = self.uncalled.sized_now() if self.uncalled.places else ()
        key = self.random_key(microbatch)
        return keyed_random_state(key, self.layers.device, unsized)


class _FirstLook(FunctionHook):
    """Searches for running averages in the first microbatch of a minibatch."""

    # The hook changes no array, and need not see each function of fused layers.
    name, only_reads, minds_fusion = "pipeline.FirstLook", True, False

    def __init__(self, statistics: BatchStatistics) -> None:
        self.statistics = statistics

    def forward_preprocess(self, function: Any, in_data: tuple) -> None:
        """Is called by every function."""
        if isinstance(function, NORMALIZING):
            if not self.statistics.is_needed:
                self.statistics.added()
            self.statistics.forward_preprocess(function, in_data)

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Is called by every function."""
        if isinstance(function, NORMALIZING):
            self.statistics.forward_postprocess(function, in_data)


def _nothing(param: chainer.Parameter) -> None:
    """Ignores a complete gradient."""
