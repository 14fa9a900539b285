"""A batch normalization and the functions behind it as one function of Chainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np
from chainer.functions.normalization import batch_normalization as chainers

from chainer_kernels.functions import batch_normalization, channels
from chainer_kernels.fusion.channel_view import ChannelView
from chainer_kernels.fusion.function import as_one_by_one, differentiable
from chainer_kernels.fusion.head_source import HEAD
from chainer_kernels.fusion.headed import HeadedLoops, Pair
from chainer_kernels.layouts import around, empty_like

Arrays = Sequence[np.ndarray]

#: Index of the first input behind ``x``, ``gamma`` and ``beta``.
_OTHERS = 3


class NormalizedFunction(chainers.BatchNormalization):
    """Normalizes and applies functions in one loop, and computes gradients in two.

    The first loop of the backward adds up the gradients of the parameters. The second
    loop uses these sums to compute the gradient of the input. The class inherits from
    Chainer's, so that code that searches a graph for batch normalizations finds it. It
    updates the running averages that it is given.

    Args:
        loops: The functions behind the normalization, with their loops.
        masks: An array for each mask of the program.
        options: Options of Chainer's ``BatchNormalization`` function.
    """

    def __init__(self, loops: HeadedLoops, masks: Arrays = (), **options: Any) -> None:
        super().__init__(**options)
        self._loops = loops
        self._masks = {m.value: a for m, a in zip(loops.program.masks, masks)}

    @property
    def label(self) -> str:
        """The names of the functions, for display."""
        return " > ".join(self._loops.program.labels)

    def check_type_forward(self, in_types: Any) -> None:
        """Checks nothing: Chainer checked inputs of these types during the trace."""

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Computes the output from ``x``, ``gamma``, ``beta`` and side inputs."""
        x, gamma, beta, *others = inputs
        chosen = self._loops.directions
        self._kept = tuple(v for v in chosen.inputs if v != HEAD)
        self.retain_inputs((0, 1, 2, *(v - 1 + _OTHERS for v in self._kept)))
        if chosen.keeps_output:
            self.retain_outputs((0,))
        self.axis = chainers._compute_axis(x.ndim, gamma.ndim, self.axis)
        self.key_axis = chainers._compute_key_axis(x.ndim, gamma.ndim, self.axis)
        y = empty_like(x)
        given = {HEAD: x, **dict(enumerate(others, 1)), **self._masks}
        seen = _Seen(given, [y], self.key_axis)
        self.mean, self.var, self.inv_std = batch_normalization.statistics(
            seen.x, gamma, self.eps
        )
        batch_normalization.move(
            self.running_mean,
            self.running_var,
            *(self.mean, self.var, self.decay, x.size // gamma.size),
        )
        seen.run(self._loops.forward(seen.kind), 0, self._scaling(gamma, beta))
        return (y,)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable, ...]
    ) -> tuple[chainer.Variable | None, ...]:
        """Computes the gradients of some inputs."""
        program = self._loops.program
        x, gamma, beta, *kept = self.get_retained_inputs()
        given = dict(zip(self._kept, kept))
        if self._loops.directions.keeps_output:
            (given[program.output],) = self.get_retained_outputs()
        given[program.gradient] = grad_outputs[0]
        if chainer.config.enable_backprop:
            found = self._differentiable(indexes, x, gamma, beta, given)
        else:
            arrays = {value: variable.array for value, variable in given.items()}
            parameters = gamma.array, beta.array
            found = self._computed(indexes, x.array, *parameters, arrays)
        return tuple(found[i] for i in indexes)

    def _computed(
        self,
        indexes: Sequence[int],
        x: np.ndarray,
        gamma: np.ndarray,
        beta: np.ndarray,
        given: Mapping[int, np.ndarray],
    ) -> dict[int, chainer.Variable | None]:
        """Returns gradients that loops compute, by the indexes of their inputs."""
        loops, program = self._loops, self._loops.program
        wanted = {
            i: program.gradients[i - _OTHERS + 1] for i in indexes if i >= _OTHERS
        }
        values = set(wanted.values()) - {None, program.gradient}
        outs = {value: empty_like(x) for value in values}
        gx = empty_like(x)
        seen = _Seen(
            {HEAD: x, **given, **self._masks}, [*outs.values(), gx], self.key_axis
        )
        places = {value: place for place, value in enumerate(outs)}
        scaling = self._scaling(gamma, beta)
        g = seen.views.get(loops.gradient)
        if g is not None:
            # Nothing is computed between the batch normalization and the output.
            products = channels.products(seen.x, g, self.mean)
        else:
            kept = places.get(loops.gradient)
            products = seen.sums(loops.sums(seen.kind, kept is not None), kept, scaling)
            g = None if kept is None else seen.outs[kept]
        gbeta, ggamma = batch_normalization.sums(products, self.mean, self.inv_std)
        if 0 in indexes:
            share = gamma.size / x.size
            parts = batch_normalization.shares(
                gamma, self.inv_std, gbeta, ggamma, share
            )
            if g is not None:
                channels.combine(seen.x, g, self.mean, *parts, seen.outs[-1])
            else:
                seen.run(loops.inputs(seen.kind), -1, (*scaling, *parts[1:]))
        for value in values - {loops.gradient}:
            seen.run(loops.other(seen.kind, value), places[value], scaling)
        outs = as_one_by_one(program, {HEAD: x, **given, **self._masks}, outs)
        known = {**outs, program.gradient: given[program.gradient]}
        arrays = {0: gx, 1: ggamma.astype("f"), 2: gbeta.astype("f")}
        arrays.update((i, known[v]) for i, v in wanted.items() if v is not None)
        found = {i: chainer.as_variable(a) for i, a in arrays.items()}
        return {**dict.fromkeys(indexes), **found}

    def _differentiable(
        self,
        indexes: Sequence[int],
        x: chainer.Variable,
        gamma: chainer.Variable,
        beta: chainer.Variable,
        given: dict[int, chainer.Variable],
    ) -> dict[int, chainer.Variable | None]:
        """Computes gradients with Chainer's functions, to differentiate them again."""
        program = self._loops.program
        head = chainers.BatchNormalization(self.eps, axis=self.axis)
        (given[HEAD],) = head.apply((x, gamma, beta))
        wanted = [program.gradients[i - _OTHERS + 1] for i in indexes if i >= _OTHERS]
        values = [self._loops.gradient, *wanted]
        found = differentiable(program, self._masks, given, values)
        options = head.eps, head.expander, head.axis, head.mean, None, head.inv_std
        grad = chainers.BatchNormalizationGrad(
            *options, head.key_axis, head._impl, head.forward_data
        )
        gradients = grad.apply((x, gamma, found[self._loops.gradient]))
        others = zip([i for i in indexes if i >= _OTHERS], wanted)
        return {
            **dict(enumerate(gradients)),
            **{i: None if value is None else found[value] for i, value in others},
        }

    def _scaling(self, gamma: np.ndarray, beta: np.ndarray) -> Arrays:
        return self.mean, self.inv_std * gamma, beta


class _Seen:
    """Views of arrays of one shape for loops over channels.

    Args:
        arrays: Arrays to read, by the numbers of their values; the input of the
            normalization first.
        outs: Arrays to write.
        axes: The axis of channels, as a sequence of one.
    """

    def __init__(
        self, arrays: Mapping[int, np.ndarray], outs: Arrays, axes: Sequence[int]
    ) -> None:
        views = around([*arrays.values(), *outs], axes)
        # Views exist for axes without other axes in between, thus for a single axis.
        assert views is not None
        self.views = dict(zip(arrays, views))
        self.x, self.outs = self.views[HEAD], views[len(arrays) :]
        self._view = ChannelView(self.x.shape)
        self.kind = self._view.kind

    def run(self, pair: Pair, out: int, parameters: Arrays) -> None:
        """Runs a loop that writes to an output."""
        matrices = self._matrices(pair, [self.outs[out]])
        self._view.run(pair.loop, matrices, self._view.parameters(*parameters))

    def sums(
        self, pair: Pair, out: int | None, parameters: Arrays
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs a loop that returns sums, and may write to an output."""
        matrices = self._matrices(pair, [] if out is None else [self.outs[out]])
        return self._view.sums(pair.loop, matrices, self._view.parameters(*parameters))

    def _matrices(self, pair: Pair, outs: Arrays) -> Arrays:
        reads = [self.views[value] for value in pair.source.reads if value != HEAD]
        return self._view.matrices([self.x, *reads, *outs])
