"""Forward, backward and update of a model, each timed."""

from __future__ import annotations

import abc
import contextlib
import functools
import resource
import time
from collections.abc import Mapping
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from benchmarks.against_torch.models import WORKLOADS, Workload

PHASES = ("forward", "backward", "update")


class Trainer(abc.ABC):
    """A model and a minibatch, on which it is trained repeatedly.

    Args:
        workload: Model and data.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, workload: Workload, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.workload = workload
        chainer.global_config.dtype = np.float32
        np.random.seed(0)
        self.model = self.build()
        x, t = workload.batch()
        # Layers that learn the number of their inputs from a first one.
        with chainer.no_backprop_mode(), chainer.using_config("train", False):
            self.model(x[:1])
        self.batch = (x, t)

    def build(self) -> chainer.Link:
        """Makes the model."""
        return self.workload.build()

    def step(self) -> list[float]:
        """Trains once.

        Returns:
            The seconds of each of `PHASES`.
        """
        times = [self._clock()]
        loss = self.forward()
        times.append(self._clock())
        self.backward(loss)
        del loss
        times.append(self._clock())
        self.update()
        times.append(self._clock())
        return np.diff(times).tolist()

    def peak_memory(self) -> int:
        """Returns how many bytes this process has had at most."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def first_losses(self, n: int) -> list[float]:
        """Trains without dropout, and returns the loss of each step."""
        losses = []
        with self.without_dropout():
            for _ in range(n):
                loss = self.forward()
                losses.append(loss.item())
                self.backward(loss)
                self.update()
        return losses

    @abc.abstractmethod
    def forward(self) -> Any:
        """Computes the loss."""

    @abc.abstractmethod
    def backward(self, loss: Any) -> None:
        """Computes the gradients."""

    @abc.abstractmethod
    def update(self) -> None:
        """Updates the parameters and forgets the gradients."""

    @abc.abstractmethod
    def without_dropout(self) -> contextlib.AbstractContextManager:
        """Leaves dropout out of a block."""


class ChainerTrainer(Trainer):
    """Trains in Chainer.

    Args:
        workload: Model and data.
        clock: Function that returns the time in seconds.
        fused: Whether layers run as one where that is faster. The first steps measure.
    """

    def __init__(
        self, workload: Workload, clock: Callable[[], float], fused: bool = False
    ) -> None:
        self._is_fused = fused
        super().__init__(workload, clock)
        self._optimizer = workload.optimizer().setup(self.model)
        # Chainer's parameters begin with gradients that are no numbers.
        self.model.cleargrads()

    def build(self) -> chainer.Link:
        """Makes the model."""
        if not self._is_fused:
            return super().build()
        model = self.workload.as_list()
        model.fuse()
        return model

    def forward(self) -> chainer.Variable:
        """Computes the loss."""
        x, t = self.batch
        return F.softmax_cross_entropy(self.model(x), t)

    def backward(self, loss: chainer.Variable) -> None:
        """Computes the gradients."""
        loss.backward()

    def update(self) -> None:
        """Updates the parameters and forgets the gradients."""
        self._optimizer.update()
        self.model.cleargrads()

    def without_dropout(self) -> contextlib.AbstractContextManager:
        """Leaves dropout out of a block."""
        if not self.workload.has_dropout:
            return contextlib.nullcontext()
        return chainer.using_config("train", False)


class TorchTrainer(Trainer):
    """Trains in PyTorch, from the weights that Chainer's model has.

    Args:
        workload: Model and data.
        clock: Function that returns the time in seconds.
        channels_last: Whether images and weights have their channels last in memory.
        compiled: Whether ``torch.compile`` gets the model.
        narrow: How bfloat16 is used: ``'autocast'``, ``'products'`` (only their
            operands are rounded) or, empty, not at all.
    """

    def __init__(
        self,
        workload: Workload,
        clock: Callable[[], float],
        channels_last: bool = False,
        compiled: bool = False,
        narrow: str = "",
    ) -> None:
        import torch

        from benchmarks.against_torch.torch_models import converted, optimizer

        super().__init__(workload, clock)
        if narrow == "products":
            torch.backends.mkldnn.fp32_precision = "bf16"
        self._casts = contextlib.nullcontext
        if narrow == "autocast":
            self._casts = functools.partial(torch.autocast, "cpu", torch.bfloat16)
        self.model: torch.nn.Module = converted(self.model)
        x, t = self.batch
        self._x, self._t = torch.from_numpy(x), torch.from_numpy(t).long()
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self._x = self._x.contiguous(memory_format=torch.channels_last)
        self._call = torch.compile(self.model) if compiled else self.model
        self._optimizer = optimizer(
            workload.optimizer().setup(chainer.Link()), self.model
        )

    def forward(self) -> Any:
        """Computes the loss."""
        from torch.nn.functional import cross_entropy

        with self._casts():
            return cross_entropy(self._call(self._x), self._t)

    def backward(self, loss: Any) -> None:
        """Computes the gradients."""
        loss.backward()

    def update(self) -> None:
        """Updates the parameters and forgets the gradients."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    @contextlib.contextmanager
    def without_dropout(self):
        """Leaves dropout out of a block."""
        if self.workload.has_dropout:
            self.model.eval()
        yield
        self.model.train()


def make_trainer(
    kind: str, workload: str, wall: bool, options: Mapping[str, Any]
) -> Trainer:
    """Makes a trainer.

    Args:
        kind: ``'chainer'`` or ``'torch'``.
        workload: The name of the trained model.
        wall: Whether the clock is the one on the wall, or else the CPU's.
        options: More arguments of the trainer.
    """
    make = {"chainer": ChainerTrainer, "torch": TorchTrainer}[kind]
    clock = time.perf_counter if wall else time.process_time
    return make(WORKLOADS[workload], clock, **options)
