"""Training and evaluation: ``chainer.config.train`` for modules of PyTorch."""

from __future__ import annotations

from torch import nn


class Modes:
    """The modes of a module and all modules within it.

    In training each has the mode that the user has given it: what is frozen by
    ``eval()`` stays frozen. In evaluation all are in the mode of evaluation.

    Args:
        module (torch.nn.Module): The module.

    Example:
        >>> module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
        >>> modes = Modes(module)
        >>> modes.switch(False)
        >>> [each.training for each in module]
        [False, False]
        >>> modes.switch(True)
        >>> [each.training for each in module]
        [True, False]
    """

    __slots__ = ("_module", "_training")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # The modules that were training before the evaluation; None in training.
        self._training: list[nn.Module] | None = None

    def switch(self, train: bool) -> None:
        """Brings all modules into the mode of training or of evaluation."""
        if train:
            if self._training is not None:
                for module in self._training:
                    module.training = True
                self._training = None
        elif self._training is None:
            self._training = [m for m in self._module.modules() if m.training]
            for module in self._training:
                module.training = False
