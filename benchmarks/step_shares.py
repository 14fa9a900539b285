"""The shares of forward, backward and update in a training step, by class of training.

    OMP_NUM_THREADS=1 python -m benchmarks.step_shares

Naruse's slide (2017, "time ratio of training") has the update in float32 cost little,
because forward and backward take most of the time. The same models are trained in
float32 by Chainer's optimizer, and in float16 by the same optimizer in mixed precision:
with products added up in float32, float32 master weights and a loss scale. They take
turns, in CPU seconds.

On a CPU float16 is computed in float32 and rounded, so that forward and backward take
longer than in float32. On a GPU they would take less, and the update a larger share.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import chainer
import chainer.functions as F
import numpy as np

from benchmarks.against_torch.models import WORKLOADS, Workload
from benchmarks.against_torch.trainers import PHASES, ChainerTrainer, Trainer
from benchmarks.common import quick
from benchmarks.common.results import Result, alternate, command, machine
from mixed_precision import MixedPrecision, float32_loss, to_float16

MODELS = "vgg16", "resnet50", "lstm", "transformer", "mlp"
#: Options of a quick run.
QUICK = {"models": ["lstm", "mlp"], "rounds": 2}


class MixedTrainer(ChainerTrainer):
    """Trains in mixed precision.

    Args:
        workload: Model and data.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, workload: Workload, clock: Callable[[], float]) -> None:
        super().__init__(workload, clock)
        to_float16(self.model)
        x, t = self.batch
        self.batch = (x.astype(np.float16) if x.dtype.kind == "f" else x, t)
        optimizer = MixedPrecision(workload.optimizer(), loss_scale=1024)
        self._optimizer = optimizer.setup(self.model)
        self._lossfun = float32_loss(F.softmax_cross_entropy)

    def forward(self) -> chainer.Variable:
        """Computes the loss in float32."""
        x, t = self.batch
        return self._lossfun(self.model(x), t)

    def backward(self, loss: chainer.Variable) -> None:
        """Computes the gradients of the scaled loss."""
        self._optimizer.backward(loss)


TRAINERS: dict[str, type[Trainer]] = {
    "float32": ChainerTrainer,
    "mixed precision": MixedTrainer,
}


def measure(
    workload: Workload, rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[list[float]]]:
    """Trains a model in every class.

    Args:
        workload: Model and data.
        rounds: Number of steps of each class.
        clock: Function that returns the time in seconds.

    Returns:
        For each class the seconds of the phases of each step.
    """
    trainers = {name: make(workload, clock) for name, make in TRAINERS.items()}
    for trainer in trainers.values():
        # The first steps compile loops, and make masters and states.
        trainer.step()
        trainer.step()
    return alternate(trainers, rounds, lambda trainer: trainer.step())


def line_of(name: str, steps: Sequence[Sequence[float]]) -> str:
    """Returns a line with the median seconds of a step, and the shares of its phases.

    Args:
        name: Name of the class.
        steps: Seconds of the phases of each step.

    Example:
        >>> line_of('float32', [[1, 2, 1], [1, 2, 1]])
        '  float32            4000.0     25.0%     50.0%     25.0%  (25.0..25.0)'
    """
    phases = np.array(steps)
    totals = phases.sum(axis=1)
    shares = 100 * phases / totals[:, None]
    medians = "".join(f"{statistics.median(each):9.1f}%" for each in shares.T)
    low, high = shares[:, -1].min(), shares[:, -1].max()
    milliseconds = 1e3 * statistics.median(totals)
    return f"  {name:<16}{milliseconds:9.1f}{medians}  ({low:.1f}..{high:.1f})"


def main() -> None:
    """Measures every model and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = quick.parse(parser, "step_shares", QUICK)
    result = Result("step_shares", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"medians of {arguments.rounds} steps in turn; ms of a step, and shares of its"
        f" phases; the least and the largest share of the update",
    )
    for name in arguments.models:
        workload = WORKLOADS[name]
        optimizer = type(workload.optimizer()).__name__
        result.write("", f"{workload.title}, {optimizer}")
        header = "".join(f"{phase:>10}" for phase in PHASES)
        result.write(f"  {'':<16}{'ms':>9}{header}")
        for key, steps in measure(workload, arguments.rounds).items():
            result.write(line_of(key, steps))
    result.save()


if __name__ == "__main__":
    main()
