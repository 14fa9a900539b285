"""Parameters of one dtype in flat buffers, so that a pass over all of them is one loop.

::

    param.array       W1 ........ | W2 .. | W3 ......     weights    float16, views
                      |  rounded  |       |               master     float32
    rule.state['v']   v1 ........ | v2 .. | v3 ......     states     float32, views
    param.grad        anywhere; unscaled for hooks into   gradients  float32

A parameter begins at a multiple of 64 elements, which the matrix units of GPUs like;
the gaps hold zeros and stay zero. Weights of float32 or float64 are their own master.

The weights decide and the master refines them: code that loads, copies or clips
``param.array`` need not know of a master, which is corrected in the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.optimizer_loops import loops_for
from chainer_kernels.update_rules import ALIGNMENT
from chainer_kernels.watched_parameters import let_hold
from mixed_precision.parameters import keeps_master
from mixed_precision.streamed import StreamedParameters, is_streamed

Array = Any


class Gathered(NamedTuple):
    """Gradients of a group.

    Attributes:
        gradients: The gradients in the form that the kernels take.
        arrays: Arrays that hold the gradients, and must live as long as ``gradients``.
    """

    gradients: Any
    arrays: Sequence[Array]


class Group:
    """The parameters of one dtype on one device.

    Args:
        parameters: Paths and initialized parameters of one dtype, on one device.
        device (chainer.backend.Device): Their device.
        keeps_master (bool): Whether float16 weights have a master; otherwise they are
            rounded in every step, and float32 copies are made for hooks only.

    Attributes:
        paths: Paths of the parameters.
        parameters: The parameters, in the order of the buffers.
        starts: Position of each parameter's first element in the buffers, int64.
        ends: Position after each parameter's last element.
        half: Float16 weights, or an array of no elements.
        master: Weights to update: float32 for float16, else the weights themselves;
            no elements without a master.
        compute_dtype: Dtype of ``master`` and of unscaled gradients.
        state_dtype: Dtype of the update rules' states: that of the weights to update.
        kernels: The module with the passes over these buffers.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, chainer.Parameter]],
        device: chainer.backend.Device,
        keeps_master: bool = True,
    ) -> None:
        self.paths = [path for path, _ in parameters]
        self.parameters = [param for _, param in parameters]
        self.device = device
        self.kernels = loops_for(device.xp)
        dtype = self.parameters[0].dtype
        self.is_half = dtype == np.float16
        self._shapes = [p.shape for p in self.parameters]
        sizes = np.array([p.size for p in self.parameters], dtype=np.int64)
        padded = -(-sizes // ALIGNMENT) * ALIGNMENT
        self.ends = np.cumsum(padded) - padded + sizes
        self.starts = self.ends - sizes
        self._n = int(padded.sum())
        self.compute_dtype = np.dtype(np.float32) if self.is_half else dtype
        self.state_dtype = self.compute_dtype if keeps_master else dtype
        with chainer.using_device(device):
            xp = device.xp
            self._weights = xp.zeros(self._n, dtype)
            if self.is_half:
                self.half = self._weights
                self.master = xp.zeros(self._n if keeps_master else 0, np.float32)
            else:
                self.half = xp.zeros(0, np.float16)
                self.master = self._weights
            zeros = xp.zeros(int(sizes.max(initial=0)), dtype)
            self._weight_views = self.views(self._weights)
            for p, view in zip(self.parameters, self._weight_views):
                view[...] = p.array
                p.array = view
                if xp is np:
                    let_hold(view)
            if self.has_master:
                self.kernels.convert(self.half, self.master)
        self._zeros = [zeros[:size] for size in sizes]
        self._states: dict[str, tuple[Array, list[Array]]] = {}
        # Made for the first hook.
        self._float32: Array | None = self.master if self.master.size else None
        self._unscaled: Array | None = None
        self._float32_views: list[tuple[chainer.Parameter, Array, Array]] = []
        # Arrays, gradients and loss scales that parameters have outside of hooks; empty
        # outside of hooks.
        self._before: list[tuple[chainer.Parameter, Array, float | None]] = []

    @property
    def has_master(self) -> bool:
        """Whether there are masters apart from the weights."""
        return self.is_half and self.master.size > 0

    def scalar(self, value: float) -> Any:
        """Returns a number in the dtype of the update's arithmetic."""
        return self.compute_dtype.type(value)

    def views(self, flat: Array) -> list[Array]:
        """Returns the parts of a flat buffer in the shapes of the parameters."""
        return [
            flat[start:end].reshape(shape)
            for start, end, shape in zip(self.starts, self.ends, self._shapes)
        ]

    def masters(self) -> dict[str, Array]:
        """Returns the masters by path; none where weights are their own masters."""
        if not self.has_master:
            return {}
        return dict(zip(self.paths, self.views(self.master)))

    def holds(self, parameters: Sequence[chainer.Parameter]) -> bool:
        """Returns whether the parameters are the same; copies their new arrays."""
        changed = []
        for p, view in zip(parameters, self._weight_views):
            array = p.array
            if array is view:
                continue
            if (
                array.dtype != view.dtype
                or array.shape != view.shape
                or p.device != self.device
            ):
                return False
            changed.append((p, view))
        if changed:
            with chainer.using_device(self.device):
                self._copy(changed)
        return True

    def _copy(self, changed: Sequence[tuple[chainer.Parameter, Array]]) -> None:
        may_share = self.device.xp.may_share_memory
        # Two parameters may have exchanged their arrays, which are parts of the buffer.
        arrays = [
            p.array.copy() if may_share(p.array, self._weights) else p.array
            for p, _ in changed
        ]
        for (p, view), array in zip(changed, arrays):
            view[...] = array
            p.array = view

    def gather(self) -> Gathered:
        """Returns the parameters' gradients; zeros where a parameter has none."""
        arrays = [
            zeros if p.grad is None else p.grad
            for p, zeros in zip(self.parameters, self._zeros)
        ]
        with chainer.using_device(self.device):
            arrays = [self.device.xp.ascontiguousarray(a) for a in arrays]
            gradients = self.kernels.gathered(arrays, self.starts, self.ends)
        return Gathered(gradients, arrays)

    def sum_squares(self, gathered: Gathered, inverse: float) -> np.ndarray:
        """Returns for each parameter the sum of its squared gradients, in float64."""
        sums = np.zeros(len(self.parameters))
        with chainer.using_device(self.device):
            self.kernels.sum_squares(gathered.gradients, self.scalar(inverse), sums)
        return sums

    def state(self, name: str) -> tuple[Array, list[Array]]:
        """Returns a flat buffer of optimizer state, zeros at first, and its views."""
        if name not in self._states:
            with chainer.using_device(self.device):
                flat = self.device.xp.zeros(self._n, self.state_dtype)
            self._states[name] = flat, self.views(flat)
        return self._states[name]

    # -- parameters in float32, for hooks and update rules --------------------------

    def enter_float32(self, gathered: Gathered, inverse: float) -> Gathered:
        """Gives the parameters their masters and unscaled gradients.

        Returns:
            The unscaled gradients.
        """
        with chainer.using_device(self.device):
            if not self._float32_views:
                self._make_float32_views()
            self.kernels.unscale(
                gathered.gradients, self.scalar(inverse), self._unscaled
            )
            if self.has_master:
                self.kernels.refresh(self.master, self.half)
            elif self.is_half:
                self.kernels.convert(self.half, self._float32)
            gradients = self.kernels.in_buffer(self._unscaled, self.starts, self.ends)
        self._before = [(p, p.grad, p._loss_scale) for p in self.parameters]
        for p, weights, gradient in self._float32_views:
            p.array = weights
            p.grad = gradient
            # An update rule would divide by the scale, WeightDecay would multiply.
            p._loss_scale = None
        return Gathered(gradients, [self._unscaled])

    def _make_float32_views(self) -> None:
        xp = self.device.xp
        self._unscaled = xp.zeros(self._n, self.compute_dtype)
        if self._float32 is None:
            self._float32 = xp.zeros(self._n, np.float32)
        weights, gradients = self.views(self._float32), self.views(self._unscaled)
        self._float32_views = list(zip(self.parameters, weights, gradients))

    def clip(self, rate: float) -> None:
        """Multiplies the unscaled gradients of parameters that are in float32."""
        with chainer.using_device(self.device):
            self._unscaled *= self.scalar(rate)

    def collect(self, part: slice = slice(None)) -> None:
        """Copies arrays that a hook or a rule assigned to parameters into the buffers.

        Args:
            part (slice): Positions of the parameters in the group.
        """
        with chainer.using_device(self.device):
            for p, weights, gradient in self._float32_views[part]:
                if p.array is not weights:
                    weights[...] = p.array
                    p.array = weights
                if p.grad is not gradient:
                    gradient[...] = 0 if p.grad is None else p.grad
                    p.grad = gradient

    def leave_float32(self) -> None:
        """Gives the parameters their weights and scaled gradients back."""
        for (p, gradient, loss_scale), view in zip(self._before, self._weight_views):
            p.array = view
            p.grad = gradient
            p._loss_scale = loss_scale
        self._before = []

    def round(self) -> None:
        """Rounds the arrays of :meth:`enter_float32` into the weights."""
        if self.is_half:
            with chainer.using_device(self.device):
                self.kernels.convert(self._float32, self.half)

    def buffers(self, in_float32: bool) -> tuple[Array, Array]:
        """Returns the weights to update, and those to round into, for kernels."""
        return (
            (self._float32, self.half[:0]) if in_float32 else (self.master, self.half)
        )


class FlatBuffers:
    """All parameters of an optimizer, in groups.

    Args:
        parameters: Paths and initialized parameters, each parameter once.
        masters: Masters by path to begin with, instead of the weights; those that do
            not round to the weights give way in the first update.

    Attributes:
        groups (list of Group): Groups of the parameters in memory.
        streamed (StreamedParameters): The parameters on disk.
        paths: Paths of all parameters, those on disk last.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, chainer.Parameter]],
        masters: Mapping[str, Array],
    ) -> None:
        sorted_out: dict[tuple, list[tuple[str, chainer.Parameter]]] = {}
        self.streamed = StreamedParameters(parameters)
        for path, p in parameters:
            if is_streamed(p):
                continue
            key = (p.dtype.char, p.device.name, keeps_master(p))
            sorted_out.setdefault(key, []).append((path, p))
        self.groups = [
            Group(members, members[0][1].device, keeps)
            for (_, _, keeps), members in sorted_out.items()
        ]
        of_groups = [path for group in self.groups for path in group.paths]
        self.paths = of_groups + self.streamed.paths
        self._key = _identity(parameters)
        for group in self.groups:
            if not group.has_master:
                continue
            for path, view in zip(group.paths, group.views(group.master)):
                if path in masters and masters[path].shape == view.shape:
                    with chainer.using_device(group.device):
                        view[...] = group.device.send(masters[path])

    def holds(self, parameters: Sequence[tuple[str, chainer.Parameter]]) -> bool:
        """Returns whether the parameters are the same; copies their new arrays."""
        if _identity(parameters) != self._key:
            return False
        return all(group.holds(group.parameters) for group in self.groups)

    def masters(self) -> dict[str, Array]:
        """Returns the masters by path."""
        return {k: v for group in self.groups for k, v in group.masters().items()}

    def flat_masters(self) -> list[Array]:
        """Returns the buffers of the masters, one of each group that has some."""
        return [group.master for group in self.groups if group.has_master]

    def gather(self) -> list[Gathered]:
        """Returns the gradients of every group."""
        return [group.gather() for group in self.groups]

    def sum_squares(self, gathered: Sequence[Gathered], inverse: float) -> np.ndarray:
        """Returns the sums of squared gradients, in the order of ``paths``."""
        sums = [g.sum_squares(each, inverse) for g, each in zip(self.groups, gathered)]
        return np.concatenate([*sums, self.streamed.sum_squares(inverse)])

    @contextmanager
    def in_float32(
        self, gathered: Sequence[Gathered], inverse: float
    ) -> Iterator[list[Gathered]]:
        """Replaces parameters by their masters, with unscaled gradients, for a while.

        Hooks and update rules that run meanwhile need not know of mixed precision.
        Their changes of the weights are rounded at the end.

        Yields:
            The unscaled gradients of every group.
        """
        entered = []
        try:
            unscaled = []
            for group, each in zip(self.groups, gathered):
                entered.append(group)
                unscaled.append(group.enter_float32(each, inverse))
            self.streamed.multiply(inverse)
            yield unscaled
            for group in self.groups:
                group.collect()
                group.round()
        finally:
            for group in entered:
                group.leave_float32()

    def collect(self) -> None:
        """Copies arrays that were put in place of views into the buffers."""
        for group in self.groups:
            group.collect()

    def clip(self, rate: float) -> None:
        """Multiplies the unscaled gradients."""
        for group in self.groups:
            group.clip(rate)
        self.streamed.multiply(rate)


def _identity(parameters: Sequence[tuple[str, chainer.Parameter]]) -> list[tuple]:
    return [(id(p), keeps_master(p)) for _, p in parameters]
