"""What follows the last layer: loss and accuracy of a minibatch in microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.backward.tensors import to_tensor
from divisible.dtypes import in_loss_dtype
from pipeline.stages.labels import highest_label, label_left_out, unwrap

_HOST = chainer.get_device("@numpy")


class Loss:
    """The loss and the accuracy of a minibatch, from those of its microbatches.

    The minibatch's loss is the mean of its microbatches' losses weighted by their
    numbers of samples, which is the loss of the undivided minibatch if ``lossfun``
    is a mean over samples. So is the accuracy. ``F.softmax_cross_entropy`` and
    ``F.accuracy``, also as a ``functools.partial`` with other arguments, leave out
    samples with the label to ignore, and so do their weights. Another function that
    leaves out samples gives the mean of the microbatches' means.

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
        function, options = unwrap(lossfun)
        self._classifies = function is chainer.functions.softmax_cross_entropy
        self._ignored = options.get("ignore_label", -1)
        # By name of the function, if it leaves one out.
        self._labels_left_out = {
            name: label
            for name, f in self._functions.items()
            if (label := label_left_out(f)) is not None
        }
        self.scale = 1.0
        self.start(None)

    def start(
        self,
        targets: Sequence[tuple] | None,
        device: chainer.backend.Device = _HOST,
    ) -> None:
        """Begins a minibatch.

        Args:
            targets: For each microbatch its targets, a tuple of arrays on any device;
                ``None`` if no loss is wanted.
            device (chainer.backend.Device): Where the outputs will be.

        Raises:
            TypeError: If class labels are not signed integers.
            ValueError: If a class label is negative.
        """
        parts = targets or ()
        counts = dict.fromkeys(self.names, [len(first) for first, *_ in parts])
        if self._classifies or self._labels_left_out:
            # Before they are on a GPU, which would have to be waited for.
            hosted = [_HOST.send(labels) for labels, *_ in parts]
            for name, label in self._labels_left_out.items():
                counts[name] = [int((labels != label).sum()) for labels in hosted]
            if self._classifies:
                self._highest = [highest_label(some, self._ignored) for some in hosted]
        self._targets = None
        if targets is not None:
            self._targets = [tuple(map(device.send, part)) for part in parts]
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
        for y in outputs:
            # Refuses other things, as it does between stages.
            to_tensor(y, "the last layer returned")
        if self._classifies:
            self._check_outputs(microbatch, outputs)
        targets = self._targets[microbatch]
        outputs = [in_loss_dtype(y) for y in outputs]
        try:
            values = [f(*outputs, *targets) for f in self._functions.values()]
        except Exception as error:
            # A model within the loss would give its own layer's position.
            error.layer_position = None
            raise
        loss, *accuracy = values
        if not isinstance(loss, chainer.Variable) or loss.shape != ():
            raise TypeError(
                f"lossfun must return a scalar chainer.Variable, not {loss!r}; with"
                f" softmax_cross_entropy, reduce must be 'mean'"
            )
        for value in accuracy:
            if value is None or np.shape(chainer.as_array(value)) != ():
                raise TypeError(f"accfun must return a scalar, not {value!r}")
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
        # Of this microbatch: in some models the number of classes varies.
        highest, n_classes = self._highest[microbatch], outputs[0].shape[1]
        if highest >= n_classes:
            raise ValueError(
                f"microbatch {microbatch} has the label {highest}, but the model has"
                f" {n_classes} outputs: labels go from 0 to {n_classes - 1}, and"
                f" {self._ignored} is ignored"
            )
