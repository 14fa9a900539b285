"""How much of the gradients float16 can hold, and what a loss scale would change.

The figures are those of Naruse's slides: histograms of the exponents of gradients
(:mod:`mixed_precision.exponent_histogram`), before and after scaling.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any

import chainer
import numpy as np
from chainer import function_hook
from chainer.training import extension

from divisible.files import new_figure, write_json, write_picture
from divisible.side_files import SideFiles
from mixed_precision.exponent_histogram import LARGEST, ExponentHistogram


class GradientReport:
    """Histograms of the gradients of a model.

    Args:
        scale (float): The loss scale whose effect is shown. Other scales than powers of
            two are shown as the nearest one.

    Attributes:
        parameters (dict): An :class:`ExponentHistogram` of the gradients of each
            parameter, by path.
        activations (dict): An :class:`ExponentHistogram` of the gradients of
            activations, by layer and function.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = float(scale)
        self.parameters: dict[str, ExponentHistogram] = {}
        self.activations: dict[str, ExponentHistogram] = {}

    def add_parameters(
        self, link: chainer.Link, updated_by_chainer: bool = False
    ) -> None:
        """Counts the gradients that the parameters of a link have now, unscaled.

        Args:
            link (chainer.Link): A model or a stage.
            updated_by_chainer (bool): Whether an optimizer other than
                :class:`MixedPrecision`, which leaves gradients scaled, has updated the
                parameters since backward.
        """
        for path, param in link.namedparams(include_uninit=False):
            if param.grad is None:
                continue
            unscaled = updated_by_chainer and _is_unscaled_in_place(param)
            loss_scale = None if unscaled else param._loss_scale
            histogram = self.parameters.setdefault(path, ExponentHistogram())
            histogram.add(param.grad, float(loss_scale or 1.0))

    def total(self, kind: str) -> ExponentHistogram:
        """Returns the sum of all ``'parameters'`` or all ``'activations'``."""
        total = ExponentHistogram()
        for histogram in getattr(self, kind).values():
            total.merge(histogram)
        return total

    @property
    def largest_safe_scale(self) -> float:
        """The power of two that brings the largest gradient to a quarter of 2**16.

        The margin is for gradients larger than those seen.
        """
        highest = [
            histogram.highest
            for kind in (self.parameters, self.activations)
            for histogram in kind.values()
            if histogram.highest is not None
        ]
        return 2.0 ** (LARGEST - 2 - max(highest)) if highest else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Returns all histograms, for JSON; see :class:`GradientStatistics`."""
        return {
            "scale": self.scale,
            "largest_safe_scale": self.largest_safe_scale,
            **{
                kind: {
                    "total": self.total(kind).as_dict(self.scale),
                    "each": {
                        name: histogram.as_dict(self.scale)
                        for name, histogram in getattr(self, kind).items()
                    },
                }
                for kind in ("parameters", "activations")
            },
        }

    def save(self, path: str) -> None:
        """Writes the report as JSON; the file appears only when it is complete."""
        write_json(path, self.as_dict())

    def plot(self, path: str) -> None:
        """Draws the histograms before and after scaling, with the range of float16.

        Args:
            path (str): Path of the picture; its ending names the format.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        kinds = [kind for kind in ("parameters", "activations") if getattr(self, kind)]
        size = 11, 3.2 * max(1, len(kinds))
        figure = new_figure(size, "drawing the exponents of gradients")
        axes = figure.subplots(max(1, len(kinds)), 2, squeeze=False)
        for row, kind in zip(axes, kinds):
            total = self.total(kind)
            for ax, scale in zip(row, (1.0, self.scale)):
                total.draw(ax, scale)
                ax.set_title(f"gradients of {kind}, times {scale:g}")
        write_picture(path, figure, dpi=100)


class ActivationGradients(function_hook.FunctionHook):
    """Function hook that counts the gradients of functions' outputs.

    The name of a histogram has the layer's position in a :class:`~divisible.Divisible`,
    or else the depth in the graph, and the function's name.

    Args:
        report (GradientReport): Report that gets the counts; may be replaced.
        optimizer (chainer.Optimizer): Optimizer whose loss scale is divided out;
            ``None`` for gradients that are not scaled.

    Example:
        >>> import chainer.functions as F, chainer.links as L
        >>> report = GradientReport()
        >>> with ActivationGradients(report):
        ...     F.sum(F.relu(L.Linear(2, 3)(np.ones((4, 2), 'f')))).backward()
        >>> [(name, each.n) for name, each in report.activations.items()]
        [('depth 2: Sum', 1), ('depth 1: ReLU', 12), ('depth 0: LinearFunction', 12)]
    """

    name = "ActivationGradients"

    def __init__(self, report: GradientReport, *, optimizer: Any = None) -> None:
        super().__init__()
        self.report = report
        self._optimizer = optimizer

    def backward_preprocess(
        self, function: Any, in_data: tuple, out_grad: tuple
    ) -> None:
        """Counts the gradients."""
        position = getattr(function, "layer_position", None)
        where = f"depth {function.rank}" if position is None else f"layer {position}"
        name = f"{where}: {function.label}"
        loss_scale = _scale_of(self._optimizer)
        for gradient in out_grad:
            if gradient is not None and gradient.dtype.kind == "f":
                histogram = self.report.activations.setdefault(
                    name, ExponentHistogram()
                )
                histogram.add(gradient, loss_scale)


class GradientStatistics(extension.Extension):
    """Trainer extension that shows which loss scale a model needs.

    The extension writes two files: histograms of the exponents of the gradients before
    and after scaling, with the shares that float16 loses, as JSON and as a picture. Use
    a float32 model to see the effect of a scale, ``GradientStatistics(scale=1024)``:
    numbers that float16 has lost already count as zero.

    The JSON has ``scale``; ``largest_safe_scale``, the power of two that brings the
    largest gradient seen to a quarter of the range; and ``parameters`` and
    ``activations``. Each of the latter has a ``total`` and ``each``, with ``n``, the
    shares ``before`` and ``after`` of :meth:`ExponentHistogram.shares`, and the counts
    of ``exponents``.

    Gradients of parameters are those of the last iteration. Gradients of activations,
    which vanish first, are added up since the last report, which makes backward slower.

    Args:
        scale (float): The scale whose effect is shown; ``None`` for the optimizer's
            own. Other scales than powers of two are shown as the nearest one.
        activations (bool): Whether to count gradients of activations.
        filename (str): Name of the files, without ending; formatted with the trainer,
            as the name in :func:`chainer.training.extensions.snapshot`. On several
            ranks each writes the gradients of its stage: give each rank another name.
        plot (bool): Whether to draw a picture, which needs matplotlib.
        optimizer_name (str): Name of the optimizer in the updater.

    Example:
        >>> def extend(trainer):
        ...     trainer.extend(GradientStatistics(), trigger=(100, 'iteration'))

    See Naruse (2017), Volta Tensor Core training, "Histogram of activation gradients".
    """

    trigger = 1, "epoch"
    priority = extension.PRIORITY_READER
    default_name = "GradientStatistics"

    def __init__(
        self,
        *,
        scale: float | None = None,
        activations: bool = False,
        filename: str = "gradient_statistics_iter_{.updater.iteration}",
        plot: bool = True,
        optimizer_name: str = "main",
    ) -> None:
        if scale is not None and not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, not {scale}")
        if plot and importlib.util.find_spec("matplotlib") is None:
            raise ImportError(
                "the picture needs matplotlib: pip install 'divisible[examples]', or"
                " GradientStatistics(plot=False)"
            )
        self._scale = scale
        self._filename = filename
        self._plot = plot
        self._optimizer_name = optimizer_name
        self._activations = activations
        self._files = SideFiles("GradientStatistics")
        self._hook: ActivationGradients | None = None

    def initialize(self, trainer: Any) -> None:
        """Starts to count gradients of activations."""
        if self._activations:
            report = self._new_report(trainer)
            self._hook = ActivationGradients(report, optimizer=self._optimizer(trainer))
            self._hook.__enter__()

    def finalize(self) -> None:
        """Stops counting."""
        if self._hook is not None:
            self._hook.__exit__(None, None, None)

    def __call__(self, trainer: Any) -> None:
        """Writes the report."""
        report = self._new_report(trainer)
        if self._hook is not None:
            report.activations = self._hook.report.activations
            self._hook.report = self._new_report(trainer)
        optimizer = self._optimizer(trainer)
        # Recognized by an attribute that ChainerMN's optimizers around it have as well.
        # With a dynamic scale of its own Chainer updates nothing if a gradient is not
        # finite.
        updated_by_chainer = not hasattr(optimizer, "loss_scale") and not getattr(
            optimizer, "_loss_scaling_isnan", False
        )
        report.add_parameters(optimizer.target, updated_by_chainer)
        path = os.path.join(trainer.out, self._filename.format(trainer))
        with self._files.writing(path):
            report.save(f"{path}.json")
            if self._plot:
                report.plot(f"{path}.png")

    def _optimizer(self, trainer: Any) -> Any:
        return trainer.updater.get_optimizer(self._optimizer_name)

    def _new_report(self, trainer: Any) -> GradientReport:
        own = _scale_of(self._optimizer(trainer))
        return GradientReport(own if self._scale is None else self._scale)


def _scale_of(optimizer: Any) -> float:
    """Returns the loss scale of an optimizer of Chainer or of MixedPrecision."""
    return float(getattr(optimizer, "_loss_scale", None) or 1.0)


def _is_unscaled_in_place(param: chainer.Parameter) -> bool:
    """Returns whether Chainer's update divides the gradient itself by the scale."""
    rule = param.update_rule
    if rule is None or not rule.enabled:
        return False
    # Otherwise Chainer divides a copy.
    return not (rule._use_fp32_update and param.dtype == np.float16)
