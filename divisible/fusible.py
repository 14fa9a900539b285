"""Layers that run one after another, chains of them as one function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from chainer import Link

from divisible.layer_list import Layer, LayerList
from divisible.layer_pass import pass_through

if TYPE_CHECKING:
    from chainer_kernels.fusion.fusing import Fusion
    from chainer_kernels.fusion.measuring import Choice


class Fusible(LayerList):
    """A list of layers that passes its inputs through them.

    ::

        run one by one     x -> BatchNormalization -> relu -> Linear -> y
        fused              x -> [BatchNormalization, relu] -> Linear -> y

    :class:`~divisible.Divisible` is one that can be cut.
    """

    # What runs chains of layers as one function; stages and views share it.
    _fusion: Fusion | None = None

    @property
    def layer_range(self) -> tuple[int, int]:
        """``(start, end)`` in the undivided model, half-open."""
        return self._start, self._start + len(self._layers)

    def forward(self, *x: Any) -> Any:
        """Passes ``x`` through the layers.

        Args:
            x: The inputs of the first layer: arrays or variables.

        Returns:
            What the last layer returns.

        Raises:
            RuntimeError: If there is no layer, or one that is not made yet.
            Exception: What a layer raises, with the layer's position in the
                undivided model as the attribute ``layer_position``. Functions in the
                graph have it as well, for errors in their backward.
        """
        y, left = self.run(x, {})
        if left:
            names = ", ".join(f"stash({name!r})" for name in left)
            raise RuntimeError(
                f"{names} of {type(self).__name__} was not popped among the layers"
                f" {self.layer_range}; a Pipeline passes it from stage to stage"
            )
        return y

    def run(self, x: Any, skipped: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Passes ``x`` through the layers of a stage with skip connections.

        Args:
            x: What the layer before the first one returned.
            skipped: By the name of a skip connection what a layer of an earlier stage
                handed over.

        Returns:
            What the last layer returns, and by name what is handed to later stages.

        Raises:
            Exception: See :meth:`forward`.
            KeyError: If something that a layer takes was not handed over.
        """
        if not self._layers:
            raise RuntimeError(f"{type(self).__name__} has no layers")
        if self._deferred.waiting:
            self._deferred.check(self._layers, type(self).__name__)
        skipped = dict(skipped)
        own = self._transposes.paths or self._deferred.first_calls
        calls = self._call if own else None, self._fusion, self._is_plain
        x = pass_through(self._layers, self._start, x, skipped, *calls)
        return x, skipped

    def _call(self, position: int, layer: Layer, inputs: tuple) -> Any:
        weights: AbstractContextManager = nullcontext()
        if self._transposes.paths and isinstance(layer, Link):
            weights = self._transposes.given_to(layer, self._positions[layer])
        with weights:
            if position in self._deferred.first_calls:
                return self._deferred.first_call(position, layer, inputs)
            return layer(*inputs)

    def _is_plain(self, position: int) -> bool:
        """Returns whether a layer is called with its own weights, and has been."""
        layer = self._layers[position - self._start]
        is_transposed = self._positions.get(layer) in self._transposes
        return not is_transposed and position not in self._deferred.first_calls

    def fuse(
        self,
        mode: str = "auto",
        *,
        chains: Iterable[tuple[int, int]] | None = None,
        waits: bool = False,
    ) -> None:
        """Runs chains of pointwise layers as one function each, where that is faster.

        A batch normalization, a linear layer or a convolution may begin one. Each chain
        is measured when it is reached first, and that decides: see
        :func:`chainer_kernels.fuse`. A chain may take what comes past other layers, at
        a :func:`~divisible.pop` within it. It ends at a :func:`~divisible.stash`, at a
        layer with other parameters, and at the end of a stage or of what is recomputed.
        Layers draw the random numbers they draw otherwise. Only what gives the same
        bits is fused, so that ranks and resumed runs may decide differently. Fuse
        first, then divide and make a pipeline.

        Where nothing trains, with ``chainer.config.train`` and ``enable_backprop``
        false, a batch normalization is also folded into the layer before it, unmeasured
        and always: see :doc:`/howto/kernels`. That changes the last bits, and a cut
        between the two undoes it.

        Args:
            mode (str): ``'auto'``, or ``'none'`` to run the layers one by one again.
            chains (list of pairs): The chains to fuse, each by its first position and
                the one after its last, without measurements.
            waits (bool): Whether chains are measured, and run one by one until their
                choice is made by another call with ``chains``.

        Raises:
            ValueError: If there is no such mode.

        Example:
            >>> import chainer.functions as F
            >>> import numpy as np
            >>> model = Divisible(F.tanh, F.relu)
            >>> model.fuse()
            >>> y = model(np.ones((200, 300), np.float32))
            >>> [(choice.start, choice.end) for choice in model.fusion_choices]
            [(0, 2)]
        """
        if mode not in ("auto", "none"):
            raise ValueError(f"mode must be 'auto' or 'none', not {mode!r}")
        # Numba takes a while to load.
        from chainer_kernels.fusion.fusing import Fusion

        chosen = None if chains is None else dict.fromkeys(map(tuple, chains), True)
        if mode == "none":
            self._fusion = None
        elif chosen is not None and self._fusion is not None and self._fusion.waits:
            # Views of this stage wait with it.
            self._fusion.decide(chosen)
        else:
            self._fusion = Fusion(chosen, waits, only_exact=True)

    @property
    def fusion_choices(self) -> tuple[Choice, ...]:
        """The chains that :meth:`fuse` has measured, in their order."""
        choices = {} if self._fusion is None else self._fusion.choices
        return tuple(choices[span] for span in sorted(choices))

    def fuses_later(self) -> bool:
        """Returns whether there were layers without a size, where a chain may begin.

        Since it was asked last.
        """
        if self._fusion is None:
            return False
        was_early, self._fusion.is_early = self._fusion.is_early, False
        return was_early
