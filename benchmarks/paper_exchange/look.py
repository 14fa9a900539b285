"""A look at the weights and gradients of CaffeNet during its training in float32.

The paper looks at conv2 in step 3000 of 7200, at the gradient of one GPU (Figs. 1, 9
and 10).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import gaussian_kde

from benchmarks.data_parallel.distribution import Distribution, distribution, relative
from benchmarks.data_parallel.simulated import Replicas
from benchmarks.paper_exchange.experiments import (
    CAFFENET,
    EXPERIMENTS,
    FLOAT,
    LOOK,
    Scale,
)

#: The parameter that the paper shows.
SHOWN = "/conv2/W"
#: Magnitudes beyond this quantile are left out of a histogram, or cut in a picture.
LIMIT = 0.99


class Look(NamedTuple):
    """Weights, and gradients of one replica.

    Attributes:
        step: Number of the step.
        weights: Weights by parameter.
        gradients: Gradients by parameter.
    """

    step: int
    weights: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]

    def shown(self) -> dict[str, np.ndarray]:
        """Returns the weights, the gradient and the ratio of the shown parameter."""
        weights, gradient = self.weights[SHOWN], self.gradients[SHOWN]
        return {
            "weight": weights,
            "gradient": gradient,
            "ratio": relative(gradient, weights),
        }

    def distributions(self) -> dict[str, Distribution]:
        """Returns the distribution of each gradient that is not zero everywhere."""
        return {
            name: distribution(gradient, self.weights[name])
            for name, gradient in self.gradients.items()
            if gradient.any()
        }


def look(scale: Scale) -> Look:
    """Trains until the step of the paper, and returns what is there."""
    experiment = EXPERIMENTS[CAFFENET, FLOAT]
    task = scale.task(experiment)
    step = max(task.common, round(task.steps * LOOK))
    replicas = Replicas(task, 0)
    replicas.train_common()
    replicas.train(experiment.way, stop=step)
    weights = {name: p.array.copy() for name, p in replicas.model.namedparams()}
    gradients = {name: each[0] for name, each in replicas.gradients(step).items()}
    return Look(step, weights, gradients)


def density(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the density of a gradient's magnitudes, as in Fig. 1.

    Args:
        gradient: Gradient with different magnitudes.

    Returns:
        Decimal logarithms of magnitudes, and the density there relative to its maximum:
        an estimate by Gaussian kernels from the values between the 1 % and 99 %
        quantiles that are not zero.
    """
    logarithms = np.log10(np.abs(gradient[gradient != 0]).astype(np.float64))
    low, high = np.quantile(logarithms, [0.01, 0.99])
    within = logarithms[(logarithms >= low) & (logarithms <= high)]
    places = np.linspace(low - 0.5, high + 0.5, 200)
    found = gaussian_kde(within)(places)
    return places, found / found.max()


def normalized(values: np.ndarray) -> np.ndarray:
    """Returns the values within a quantile of the magnitudes, relative to it (Fig. 9).

    Args:
        values: Values that are not all zero.
    """
    limit = np.quantile(np.abs(values), LIMIT)
    return values[np.abs(values) <= limit] / limit


def local_part(values: np.ndarray) -> float:
    """Returns how much rows and columns of a matrix have magnitudes of their own.

    Args:
        values: Weights, gradients or ratios of a convolution or a Linear layer. Rows
            are filters, columns are inputs.

    Returns:
        The part of the variance of the logarithms of magnitudes that the means of rows
        and of columns explain; 0 if all are equal. Zeros do not count.
    """
    matrix = np.abs(values.reshape(len(values), -1).astype(np.float64))
    # A filter that is never active has zeros only.
    matrix = matrix[matrix.any(axis=1)][:, matrix.any(axis=0)]
    logarithms = np.log(matrix, where=matrix > 0, out=np.full(matrix.shape, np.nan))
    logarithms -= np.nanmean(logarithms)
    before = np.nanvar(logarithms)
    if not before:
        return 0.0
    logarithms -= np.nanmean(logarithms, axis=1, keepdims=True)
    logarithms -= np.nanmean(logarithms, axis=0, keepdims=True)
    return float(1 - np.nanvar(logarithms) / before)
