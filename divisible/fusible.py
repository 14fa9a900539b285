"""Layers that run one after another, chains of them as one function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from chainer import Link

from divisible.layer_list import Layer, LayerList
from divisible.layer_pass import pass_through

if TYPE_CHECKING:
    from chainer_kernels.fusion.fusing import Fusion
    from chainer_kernels.fusion.measuring import FusionChoice


class Fusible(LayerList):
    """A list of layers that passes its inputs through them.

    ::

        run one by one     x -> BatchNormalization -> relu -> Linear -> y
        fused              x -> [BatchNormalization, relu] -> Linear -> y

    The subclass :class:`~divisible.Divisible` can also be cut.
    """

    # Runs chains of layers as one function. Stages and views share it.
    _fusion: Fusion | None = None

    def forward(self, *x: Any) -> Any:
        """Passes ``x`` through the layers.

        Args:
            x: The inputs of the first layer: arrays or variables.

        Returns:
            The output of the last layer.

        Raises:
            RuntimeError: If there is no layer, or one that is not made yet.
            Exception: The error of a layer. Its attribute ``layer_position`` has the
                layer's position in the undivided model. Functions in the graph have
                this attribute as well, for errors in their backward.
        """
        y, left = self.run(x, {})
        if left:
            names = ", ".join(f"stash({name!r})" for name in left)
            raise RuntimeError(
                f"{names} of {type(self).__name__} was not popped among the layers"
                f" {self.layer_range}; a Pipeline passes it from stage to stage"
            )
        return y

    def run(
        self,
        x: Any,
        skipped: Mapping[str, Any],
        call: Callable[[int, Layer, Callable, tuple], Any] | None = None,
        chains: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        """Passes ``x`` through the layers of a stage with skip connections.

        Args:
            x: The output of the layer before the first one.
            skipped: Tensors from layers of earlier stages, by the name of the skip
                connection.
            call: Function that calls a layer, for its position, the layer, a function
                of its inputs and the inputs; layers then run one by one.
            chains: Whether neighbouring modules of PyTorch may run as one function.

        Returns:
            The output of the last layer, and tensors for later stages, by name.

        Raises:
            Exception: See :meth:`forward`.
            KeyError: If a layer pops a tensor that was not stashed.
        """
        if not self._layers:
            raise RuntimeError(f"{type(self).__name__} has no layers")
        if self._deferred.waiting:
            self._deferred.check(self._layers, type(self).__name__)
        skipped = dict(skipped)
        caller, fusion = None, self._fusion
        if call is not None:
            caller, fusion = functools.partial(self._called_by, call), None
        elif self._transposes.paths or self._deferred.first_calls:
            caller = self._call
        y = pass_through(
            self._layers,
            self._start,
            x,
            skipped,
            caller,
            fusion,
            self._is_plain,
            self._last_users,
            chains and caller is None,
        )
        return y, skipped

    def _last_users(self) -> Container[int]:
        """Returns the positions of layers behind which no layer pops their tensor."""
        raise NotImplementedError

    def _called_by(
        self, call: Callable, position: int, layer: Layer, inputs: tuple
    ) -> Any:
        def run(*inputs: Any) -> Any:
            return self._call(position, layer, inputs)

        return call(position, layer, run, inputs)

    def _call(self, position: int, layer: Layer, inputs: tuple) -> Any:
        weights: AbstractContextManager = nullcontext()
        if self._transposes.paths and isinstance(layer, Link):
            weights = self._transposes.given_to(layer, self._positions[layer])
        with weights:
            if position in self._deferred.first_calls:
                return self._deferred.first_call(position, layer, inputs)
            return layer(*inputs)

    def _is_plain(self, position: int) -> bool:
        """Returns whether a layer has its own weights, and was called before."""
        layer = self._layers[position - self._start]
        is_transposed = self._positions.get(layer) in self._transposes
        return not is_transposed and position not in self._deferred.first_calls

    def fuse(self, chains: str | Iterable[tuple[int, int]] = "auto") -> None:
        """Runs chains of pointwise layers as one function each, where that is faster.

        A chain may begin with a batch normalization, a linear layer or a convolution.
        Each chain is measured when it is first reached, and runs the faster way from
        then on: see :func:`chainer_kernels.fuse`. A chain may have a
        :func:`~divisible.pop` within. It ends at a :func:`~divisible.stash`, at a layer
        with parameters that is no small linear one, and at the end of a stage or of
        recomputed layers. Layers
        draw the same random numbers as without fusion. Chains are fused only if the
        results have the same bits, so ranks and resumed runs may decide differently.
        Fuse first, then divide and make a pipeline.

        Outside training, with ``chainer.config.train`` and ``enable_backprop`` false, a
        batch normalization is also folded into the layer before it: see
        :doc:`/howto/kernels`. Folding is always done, and not measured. It rounds
        differently, so the last bits of results may differ between cuts that separate
        the two layers and cuts that do not.

        Args:
            chains (str or list of pairs): ``'auto'`` to measure; ``'none'`` to run the
                layers one by one again; or the chains to fuse without measurements,
                each by its first position and the one after its last. The same as
                ``fuse`` of a :class:`~pipeline.Pipeline`, which needs no call of this.

        Raises:
            ValueError: If ``chains`` is another text.

        Example:
            >>> import chainer.functions as F
            >>> import numpy as np
            >>> from divisible import Divisible
            >>> model = Divisible(F.tanh, F.relu)
            >>> model.fuse()
            >>> y = model(np.ones((200, 300), np.float32))
            >>> [(choice.start, choice.end) for choice in model.fusion_choices]
            [(0, 2)]
        """
        chosen = None
        if not isinstance(chains, str):
            chosen = dict.fromkeys(map(tuple, chains), True)
        elif chains not in ("auto", "none"):
            raise ValueError(
                f"chains must be 'auto', 'none' or pairs of positions, not {chains!r}"
            )
        if isinstance(chains, str) and chains == "none":
            self._fusion = None
        elif chosen is not None and self._fusion is not None and self._fusion.waits:
            # Views of this stage share the object, and wait for the same choice.
            self._fusion.decide(chosen)
        else:
            self._begin_fusion(chosen)

    def measure_fusion(self) -> None:
        """Measures chains, which run one by one until :meth:`fuse` is given the choice.

        Pipelines use it, whose ranks choose together.
        """
        self._begin_fusion(None, waits=True)

    def _begin_fusion(
        self, chosen: dict[tuple[int, int], bool] | None, waits: bool = False
    ) -> None:
        # Fusion imports Numba, which takes a while to load.
        from chainer_kernels.fusion.fusing import Fusion

        self._fusion = Fusion(chosen, waits, only_exact=True)

    @property
    def fusion_choices(self) -> tuple[FusionChoice, ...]:
        """The chains that :meth:`fuse` has measured, in their order."""
        choices = {} if self._fusion is None else self._fusion.choices
        return tuple(choices[span] for span in sorted(choices))

    def fuses_later(self) -> bool:
        """Returns whether a chain may begin at a layer that had no size yet.

        Only layers since the last call count.
        """
        if self._fusion is None:
            return False
        was_early, self._fusion.is_early = self._fusion.is_early, False
        return was_early
