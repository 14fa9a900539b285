"""How much each layer of a trained network can lose.

    OMP_NUM_THREADS=1 python -m benchmarks.layer_sensitivity

The convolutional network of `benchmarks.compression` learns digits. Then each layer
alone is pruned by magnitude to several degrees, or rounded to few bits, and the test
accuracy is measured without further training.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import Result, command, machine, new_file
from benchmarks.compression import TASKS, Variant, accuracy, said, train
from benchmarks.mixed_precision_accuracy import digits
from model_compression import sensitivity

#: Ways to make a layer smaller, and the parts of it that are pruned.
METHODS = ("magnitude", "int8", "int4", "int2")
DEGREES = (0.5, 0.7, 0.9, 0.95)


def measure(epochs: int, seed: int) -> Any:
    """Trains, and returns what each layer can lose.

    Args:
        epochs: Number of epochs.
        seed: Seed of weights, order of samples and split of the data.
    """
    task = TASKS["digits"]._replace(epochs=epochs)
    model, _ = train(task, seed, Variant(None, 0.0))
    _, _, x, t = digits(seed, np.float32)
    return sensitivity(
        model,
        lambda model: accuracy(said(model, x), t),
        methods=METHODS,
        degrees=DEGREES,
    )


def main() -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=TASKS["digits"].epochs)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=new_file, help="where to draw the accuracies")
    arguments = parser.parse_args()
    result = Result("layer_sensitivity", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"digits, {arguments.epochs} epochs, seed {arguments.seed}: test accuracy in"
        " percent after a layer alone was made smaller",
        "",
    )
    found = measure(arguments.epochs, arguments.seed)
    result.write(*str(found).splitlines())
    result.save()
    if arguments.plot:
        found.plot(arguments.plot)


if __name__ == "__main__":
    main()
