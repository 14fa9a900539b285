"""What follows the last layer: loss and accuracy of a minibatch in microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable

import chainer
import numpy as np


class Loss:
    """The loss and the accuracy of a minibatch, from those of its microbatches.

    The minibatch's loss is the mean of its microbatches' losses weighted by their
    numbers of samples, which is the loss of the undivided minibatch if ``lossfun``
    is a mean over samples. ``F.softmax_cross_entropy``, also as a
    ``functools.partial`` with other arguments, leaves out samples with the label to
    ignore, and so do its weights. Another ``lossfun`` that leaves out samples gives
    the mean of the microbatches' means.

    Outputs of float16 are cast to float32 first.

    Args:
        lossfun: ``lossfun(*outputs, *targets)`` returns a scalar variable, the mean
            over the samples. If it is a link, its parameters get gradients as well.
        accfun: The same for the accuracy, or ``None``.

    Attributes:
        scale (float): What the gradients of the loss are multiplied by.
    """

    def __init__(self, lossfun: Callable, accfun: Callable | None) -> None:
        self._functions = {"loss": lossfun}
        if accfun is not None:
            self._functions["accuracy"] = accfun
        self.names = tuple(self._functions)
        options = getattr(lossfun, "keywords", {})
        function = getattr(lossfun, "func", lossfun)
        self._classifies = function is chainer.functions.softmax_cross_entropy
        self._ignored = options.get("ignore_label", -1)
        self._normalizes = options.get("normalize", True)
        self.scale = 1.0
        self.start(None, ())

    def start(self, targets: Sequence[tuple] | None, sizes: Sequence[int]) -> None:
        """Begins a minibatch.

        Args:
            targets: For each microbatch its targets, a tuple of arrays; ``None`` if
                no loss is wanted.
            sizes: For each microbatch its number of samples.
        """
        self._targets = targets
        counts = dict.fromkeys(self.names, sizes)
        if self._classifies and self._normalizes and targets is not None:
            counts["loss"] = [int((t != self._ignored).sum()) for t, *_ in targets]
        #: By name, over how many samples the mean is.
        self.n_counted = {name: int(np.sum(n)) for name, n in counts.items()}
        self._weights = {
            name: np.asarray(n) / max(1, self.n_counted[name])
            for name, n in counts.items()
        }
        self._values: dict[int, list[Any]] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether the minibatch has targets."""
        return self._targets is not None

    @property
    def means(self) -> np.ndarray:
        """The means over the microbatches seen so far, in the order of ``names``."""
        means = np.zeros(len(self.names))
        for microbatch, values in sorted(self._values.items()):
            for i, name in enumerate(self.names):
                means[i] += self._weights[name][microbatch] * float(values[i])
        return means

    def __call__(self, microbatch: int, outputs: Sequence[Any]) -> chainer.Variable:
        """Returns the loss of one microbatch, and counts it."""
        if self._classifies:
            self._check_outputs(microbatch, outputs)
        targets = self._targets[microbatch]
        outputs = [_widened(y) for y in outputs]
        try:
            values = [f(*outputs, *targets) for f in self._functions.values()]
        except Exception as error:
            # A model within the loss would give its own layer's position.
            error.layer_position = None
            raise
        loss = values[0]
        if not isinstance(loss, chainer.Variable) or loss.shape != ():
            raise TypeError(
                f"lossfun must return a scalar chainer.Variable, not {loss!r}; with"
                f" softmax_cross_entropy, reduce must be 'mean'"
            )
        # Turned into numbers at the end only, for which a GPU has to be waited for.
        self._values[microbatch] = [chainer.as_array(y) for y in values]
        return loss

    @property
    def links(self) -> dict[str, chainer.Link]:
        """``lossfun`` and ``accfun`` by their names, as far as links."""
        return {
            name: function
            for name, function in self._functions.items()
            if isinstance(function, chainer.Link)
        }

    def params(self) -> Iterator[chainer.Parameter]:
        """Yields their parameters."""
        for link in self.links.values():
            yield from link.params()

    def namedlinks(self) -> Iterator[tuple[str, chainer.Link]]:
        """Yields them, and the links within, with their paths."""
        for name, function in self.links.items():
            for path, link in function.namedlinks():
                yield f"/{name}{path}".rstrip("/"), link

    def gradient(self, microbatch: int, loss: chainer.Variable) -> Any:
        """Returns the scaled gradient of the minibatch's loss by the microbatch's."""
        xp = chainer.backend.get_array_module(loss.array)
        return xp.full_like(loss.array, self.scale * self._weights["loss"][microbatch])

    def _check_outputs(self, microbatch: int, outputs: Sequence[Any]) -> None:
        n_outputs, n_targets = (
            len(arrays[0]) for arrays in (outputs, self._targets[microbatch])
        )
        if n_outputs != n_targets:
            raise ValueError(
                f"microbatch {microbatch} has {n_outputs} samples but {n_targets}"
                f" targets: x and t must be of the same minibatch"
            )
        # NumPy would take labels from the end, and CuPy from anywhere.
        labels = self._targets[microbatch][0]
        labels = labels[labels != self._ignored]
        if labels.size == 0 or labels.dtype.kind not in "iu":
            return
        # Of this microbatch: in some models the number of classes varies.
        n_classes = outputs[0].shape[1]
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= n_classes:
            raise ValueError(
                f"microbatch {microbatch} has the label {low if low < 0 else high}, but"
                f" the model has {n_classes} outputs: labels go from 0 to"
                f" {n_classes - 1}, and {self._ignored} is ignored"
            )


def _widened(output: Any) -> Any:
    if output.dtype == np.float16:
        return chainer.functions.cast(output, np.float32)
    return output
