"""Losses of PyTorch that report how many samples they are a mean of."""

from __future__ import annotations

from typing import Any

import chainer
import torch
from torch import nn

from divisible.planning.shape_arrays import ShapeArray
from torch_layers.arrays import to_tensor
from torch_layers.layer import TorchLayer


class TorchLoss(TorchLayer):
    """A loss of PyTorch as the ``lossfun`` of a pipeline.

    A minibatch is the mean over its samples, however it is cut into microbatches. So
    the loss of a microbatch comes with its share: for ``nn.CrossEntropyLoss`` and
    ``nn.NLLLoss``, the sum of the weights of all labels but ``ignore_index``. Other
    losses count each sample.

    Args:
        module (torch.nn.Module): The loss, with ``reduction='mean'``. Labels must be of
            int64.

    Raises:
        ValueError: For another reduction.

    Example:
        >>> import numpy as np
        >>> lossfun = TorchLoss(nn.CrossEntropyLoss())
        >>> loss, n = lossfun(np.zeros((3, 2), np.float32), np.array([0, 1, -100]))
        >>> round(float(loss.array), 3), n
        (0.693, 2.0)
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        reduction = getattr(module, "reduction", "mean")
        if reduction != "mean":
            raise ValueError(
                f"TorchLoss({type(module).__name__}): reduction is {reduction!r}, but a"
                f" pipeline needs the mean of a microbatch: give reduction='mean'"
            )

    def forward(self, *args: Any) -> Any:
        """Returns the loss, and its share in that of the minibatch if it has one.

        Args:
            args: Outputs of the model, then targets.
        """
        loss = super().forward(*args)
        share = self._share(args)
        return loss if share is None else (loss, share)

    def _share(self, args: tuple) -> float | None:
        if not isinstance(self.module, (nn.CrossEntropyLoss, nn.NLLLoss)):
            return None
        labels = chainer.as_array(args[1])
        if isinstance(labels, ShapeArray):
            # A prediction of memory has no numbers.
            return None
        labels = to_tensor(labels)
        if labels.dtype.is_floating_point:
            # Probabilities: no sample is left out.
            return None
        counted = labels != self.module.ignore_index
        if self.module.weight is None:
            return float(torch.count_nonzero(counted))
        return float(self.module.weight[labels[counted]].sum())
