"""The loss and the accuracy of a minibatch, behind the last layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Callable

import chainer
import numpy as np
from chainer.functions.evaluation.accuracy import Accuracy
from chainer.functions.evaluation.binary_accuracy import BinaryAccuracy

from divisible.backward.tensors import to_tensor
from divisible.dtypes import in_loss_dtype
from pipeline.stages.counted_mean import CountedMean
from pipeline.stages.labels import (
    check_labels,
    highest_label,
    takes_outputs_alone,
    unwrap,
)

_HOST = chainer.get_device("@numpy")


class Loss:
    """The loss and the accuracy of a minibatch, from those of its microbatches.

    Both are means over the samples that count (:class:`CountedMean`), as if the
    minibatch had not been cut.

    Outputs of float16 are cast to float32 first.

    Args:
        lossfun: ``lossfun(*outputs, *targets)`` returns a scalar variable, the mean
            over the samples. It may also return a pair: the mean, and the number of
            samples that count. If it is a link, its parameters get gradients as well.
        accfun: Function of the accuracy, with the same arguments; ``None`` for no
            accuracy.

    Attributes:
        scale (float): Factor by which the gradients of the loss are multiplied.
        needs_targets (bool): Whether ``lossfun`` or ``accfun`` needs targets.
        is_wanted (bool): Whether the minibatch has targets.
    """

    def __init__(self, lossfun: Callable, accfun: Callable | None) -> None:
        # Metrics beside the loss, which L.Classifier computes, do not count for it.
        loss = CountedMean("lossfun", lossfun, ignores=(Accuracy, BinaryAccuracy))
        self._means = {"loss": loss}
        if accfun is not None:
            self._means["accuracy"] = CountedMean("accfun", accfun)
        self.names = tuple(self._means)
        self.needs_targets = not all(
            takes_outputs_alone(mean.function) for mean in self._means.values()
        )
        function, options = unwrap(lossfun)
        self._classifies = function is chainer.functions.softmax_cross_entropy
        self._ignored = options.get("ignore_label", -1)
        self.scale = 1.0
        self.start(None)

    def start(
        self,
        targets: Sequence[tuple] | None,
        device: chainer.backend.Device = _HOST,
    ) -> None:
        """Begins a minibatch.

        Args:
            targets: The targets of each microbatch: a tuple of arrays on any device,
                empty if there are none. ``None`` if no loss is wanted.
            device (chainer.backend.Device): Device of the outputs.

        Raises:
            TypeError: If class labels are not signed integers.
            ValueError: If a class label is negative.
        """
        parts = targets or ()
        hosted = []
        if self._classifies or any(
            mean.label_left_out is not None for mean in self._means.values()
        ):
            # On the host, before the labels are on a GPU, which would have to be waited
            # for.
            hosted = [_HOST.send(labels) for labels, *_ in parts]
        if self._classifies:
            self._highest = [highest_label(some, self._ignored) for some in hosted]
        self._targets, self.is_wanted = None, targets is not None
        if targets is not None:
            self._targets = [tuple(map(device.send, part)) for part in parts]
        for mean in self._means.values():
            mean.start(self._targets or (), hosted)

    def first_targets(self, n: int = 1) -> tuple:
        """Returns the targets of the first samples, on the host; empty without any.

        Args:
            n (int): The most samples, of the first microbatch.
        """
        first = self._targets[0] if self._targets else ()
        return tuple(_HOST.send(array[:n]) for array in first)

    def outcome(self) -> list[float]:
        """Returns the means over the microbatches seen so far, and their counts.

        Returns:
            The means, in the order of ``names``; the number of samples that each is a
            mean over; and the factor for the minibatch's gradients at its end.
        """
        found, counts = [], []
        for mean in self._means.values():
            found.append(float(mean.mean))
            counts.append(float(mean.n_counted))
        return [*found, *counts, float(self._means["loss"].correction)]

    @property
    def knows_count(self) -> bool:
        """Whether :attr:`n_known` is a number once a minibatch has begun."""
        return self._means["loss"].is_understood

    @property
    def n_known(self) -> int | None:
        """Number of samples that the loss will be a mean over, if known beforehand."""
        return self._means["loss"].n_known

    def warnings(self) -> list[str]:
        """Returns warnings about samples that were left out, each text once."""
        texts = []
        for mean in self._means.values():
            # A function that is understood counts the right samples.
            text = None if mean.is_understood else mean.warning()
            if text is not None:
                texts.append(text)
        return texts

    def __call__(self, microbatch: int, outputs: Sequence[Any]) -> chainer.Variable:
        """Returns the loss of one microbatch, and records how many samples count.

        Raises:
            Exception: An error of ``lossfun`` or ``accfun``, with
                ``layer_position=None``.
        """
        try:
            return self._of(microbatch, outputs)
        except Exception as error:
            # A model within the loss would give its own layer's position.
            error.layer_position = None
            raise

    def _of(self, microbatch: int, outputs: Sequence[Any]) -> chainer.Variable:
        for y in outputs:
            # Refuses anything but tensors, as between stages.
            to_tensor(y, "the last layer returned")
        if self._classifies:
            t, highest = self._targets[microbatch][0], self._highest[microbatch]
            check_labels(microbatch, outputs[0], t, highest, self._ignored)
        for y in outputs:
            if y.dtype == np.float16:
                outputs = [in_loss_dtype(each) for each in outputs]
                break
        values = [mean(microbatch, outputs) for mean in self._means.values()]
        loss, *accuracy = values
        if not isinstance(loss, chainer.Variable) or loss.shape != ():
            raise TypeError(
                f"lossfun must return a scalar chainer.Variable, or that and a number"
                f" of samples, not {loss!r}; with softmax_cross_entropy, reduce must be"
                f" 'mean'"
            )
        for value in accuracy:
            if value is None or np.shape(chainer.as_array(value)) != ():
                raise TypeError(
                    f"accfun must return a scalar, or that and a number of samples, not"
                    f" {value!r}"
                )
        if self._means["loss"].counts_nothing(microbatch) and not _is_finite(loss):
            # Zero times its gradients would be no number either.
            return _Nothing().apply(outputs)[0]
        return loss

    @cached_property
    def links(self) -> dict[str, chainer.Link]:
        """``lossfun`` and ``accfun`` by their names, if they are links."""
        return {
            name: mean.function
            for name, mean in self._means.items()
            if isinstance(mean.function, chainer.Link)
        }

    def params(self) -> Iterator[chainer.Parameter]:
        """Yields the parameters of these links."""
        for link in self.links.values():
            yield from link.params()

    def namedlinks(self) -> Iterator[tuple[str, chainer.Link]]:
        """Yields these links, and the links within them, with their paths."""
        for name, function in self.links.items():
            for path, link in function.namedlinks():
                yield f"/{name}{path}".rstrip("/"), link

    def gradient(self, microbatch: int, loss: chainer.Variable) -> Any:
        """Returns the scaled gradient of the minibatch's loss with respect to this one.

        The correction is missing, which is known at the end of the minibatch.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            loss (chainer.Variable): Loss of the microbatch.
        """
        xp = chainer.backend.get_array_module(loss.array)
        share = self.scale * self._means["loss"].weight(microbatch)
        return xp.full_like(loss.array, share)


def _is_finite(loss: chainer.Variable) -> bool:
    xp = chainer.backend.get_array_module(loss.array)
    return bool(xp.isfinite(loss.array))


class _Nothing(chainer.FunctionNode):
    """A loss whose gradients are zero."""

    def forward(self, inputs: tuple) -> tuple:
        xp = chainer.backend.get_array_module(*inputs)
        return (xp.zeros((), np.float32),)

    def backward(self, indexes: Sequence[int], gradients: Sequence[Any]) -> tuple:
        xp = chainer.backend.get_array_module(gradients[0].array)
        inputs = [self.inputs[i] for i in indexes]
        return tuple(chainer.Variable(xp.zeros(x.shape, x.dtype)) for x in inputs)
