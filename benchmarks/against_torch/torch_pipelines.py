"""Pipelines of PyTorch's ``torch.distributed.pipelining``, one rank of each."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.nn.functional import cross_entropy

from benchmarks.against_torch.torch_models import converted
from divisible import LayerCost, Profile, partition

#: The schedules, and on which rank each has its stages.
PLACEMENTS = {
    "Schedule1F1B": (0, 1),
    "ScheduleInterleaved1F1B": (0, 1, 0, 1),
    "ScheduleInterleavedZeroBubble": (0, 1, 0, 1),
    "ScheduleZBVZeroBubble": (0, 1, 1, 0),
}
#: Seconds that a rank may wait for the other.
TIMEOUT = 120


class TorchPipelines:
    """A rank of pipelines of one model, whose stages share its parameters.

    Args:
        rank: 0 or 1.
        port: Where the ranks meet on this machine.
        build: Makes the model in Chainer, which becomes an ``nn.Sequential``.
        batch: Makes a minibatch.
        microbatches: Into how many microbatches each schedule cuts it, for a pipeline
            each.
    """

    def __init__(
        self,
        rank: int,
        port: int,
        build: Callable[[], Any],
        batch: Callable[[], tuple[np.ndarray, np.ndarray]],
        microbatches: Sequence[int],
    ) -> None:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=TIMEOUT),
        )
        self._rank = rank
        x, t = batch()
        self._x, self._t = torch.from_numpy(x), torch.from_numpy(t).long()
        self._units = units_of(converted(build()))
        costs: list[Any] = [None]
        if rank == 0:
            costs = [_profile(self._units, self._x[: len(x) // microbatches[0]])]
        distributed.broadcast_object_list(costs)
        self._pipelines = {
            (name, n): self._schedule(name, n, costs[0])
            for name in PLACEMENTS
            for n in microbatches
        }

    def _schedule(self, name: str, n_microbatches: int, costs: Profile) -> Any:
        """Makes a schedule with this rank's stages."""
        placement = PLACEMENTS[name]
        cuts = partition(costs, len(placement)).cuts
        stages = [
            pipelining.PipelineStage(
                nn.Sequential(*self._units[start:end]),
                stage,
                len(placement),
                torch.device("cpu"),
            )
            for stage, (start, end) in enumerate(zip(cuts, cuts[1:]))
            if placement[stage] == self._rank
        ]
        make = getattr(schedules, name)
        is_single = issubclass(make, schedules.PipelineScheduleSingle)
        return make(stages[0] if is_single else stages, n_microbatches, _loss)

    def names(self) -> list[str]:
        """Returns the names of the schedules."""
        return list(PLACEMENTS)

    def step(self, name: str, n_microbatches: int) -> float | None:
        """Computes the gradients of the minibatch in a pipeline.

        Returns:
            The loss, where the last stage is.
        """
        schedule = self._pipelines[name, n_microbatches]
        self._forget_gradients()
        x = [self._x] if self._rank == 0 else []
        if self._rank != PLACEMENTS[name][-1]:
            schedule.step(*x)
            return None
        losses: list[torch.Tensor] = []
        schedule.step(*x, target=self._t, losses=losses)
        return torch.stack(losses).mean().item()

    def undivided_step(self) -> float:
        """Computes the gradients of the minibatch on this rank alone."""
        self._forget_gradients()
        loss = _loss(nn.Sequential(*self._units)(self._x), self._t)
        loss.backward()
        return loss.item()

    def _forget_gradients(self) -> None:
        for unit in self._units:
            unit.zero_grad()


def _loss(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Returns the loss of a row of scores for each target."""
    return cross_entropy(y, t.flatten())


def units_of(model: nn.Sequential) -> list[nn.Module]:
    """Returns what a model may be cut into: a ReLU works on its input, in place."""
    units: list[nn.Module] = []
    for module in model:
        if isinstance(module, nn.ReLU):
            module = nn.Sequential(units.pop(), module)
        units.append(module)
    return units


def _profile(units: Sequence[nn.Module], x: torch.Tensor, repeat: int = 3) -> Profile:
    """Times the forward and the backward of each unit, given the model's input."""
    costs = []
    for unit in units:
        seconds = []
        for _ in range(repeat + 1):
            leaf = x.detach().requires_grad_(x.is_floating_point())
            start = time.process_time()
            y = unit(leaf)
            middle = time.process_time()
            y.backward(torch.ones_like(y))
            seconds.append((middle - start, time.process_time() - middle))
        # The first one takes memory from the system.
        forward, backward = np.median(seconds[1:], axis=0)
        costs.append(LayerCost(float(forward), float(backward), 1e-9))
        x = y
    return Profile(costs, n_samples=len(x))
