"""How much of the gradients float16 can hold, and what a loss scale would change.

The figures of Naruse's slides: histograms of the exponents of gradients, beside the
range of float16::

    2^-24 ........ 2^-14 ........................ 2^15
       subnormal               normal              |  overflow
    |  fewer and fewer bits    11 bits             65504

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

from divisible.files import write_json, write_picture
from divisible.side_files import SideFiles

Array = Any

# Of float32 all normal exponents; what is smaller is counted with the smallest.
_LOWEST, _HIGHEST = -126, 127
_SMALLEST_SUBNORMAL, _SMALLEST_NORMAL, _LARGEST = -24, -14, 15


class ExponentHistogram:
    """Counts numbers by the exponents of their magnitudes.

    Attributes:
        n_zeros (int): How many are zero.
        n_not_finite (int): How many are infinite or NaN.
        counts (numpy.ndarray): How many have the exponent -126, -125, ... 127: lie
            between 2**e and 2**(e + 1).

    Example:
        >>> histogram = ExponentHistogram()
        >>> histogram.add(np.array([0, 2**-20, 0.5, 0.75], np.float32))
        >>> [histogram.shares(scale)['below_normal'] for scale in (1, 64)]
        [0.25, 0.0]
    """

    def __init__(self) -> None:
        self.n_zeros = 0
        self.n_not_finite = 0
        self.counts = np.zeros(_HIGHEST - _LOWEST + 1, dtype=np.int64)

    def add(self, gradient: Array, loss_scale: float = 1.0) -> None:
        """Counts an array.

        Args:
            gradient (array): NumPy or CuPy array of floating-point numbers.
            loss_scale (float): What it is divided by first.
        """
        device = chainer.backend.get_device_from_array(gradient)
        xp = device.xp
        with chainer.using_device(device):
            # In float64, where what is divided does not become zero.
            magnitudes = xp.abs(gradient.astype(np.float64)).ravel() / loss_scale
            finite = magnitudes[xp.isfinite(magnitudes)]
            numbers = finite[finite > 0]
            # CuPy cannot count nothing.
            if numbers.size:
                exponents = xp.clip(xp.frexp(numbers)[1] - 1, _LOWEST, _HIGHEST)
                counts = xp.bincount(exponents - _LOWEST, minlength=self.counts.size)
                self.counts += chainer.get_device("@numpy").send(counts)
        self.n_zeros += int(finite.size - numbers.size)
        self.n_not_finite += int(magnitudes.size - finite.size)

    def merge(self, other: ExponentHistogram) -> None:
        """Adds the counts of another one."""
        self.n_zeros += other.n_zeros
        self.n_not_finite += other.n_not_finite
        self.counts += other.counts

    @property
    def n(self) -> int:
        """How many numbers there are."""
        return int(self.counts.sum()) + self.n_zeros + self.n_not_finite

    @property
    def highest(self) -> int | None:
        """The largest exponent; ``None`` without any."""
        occupied = np.flatnonzero(self.counts)
        return int(occupied[-1]) + _LOWEST if occupied.size else None

    def shares(self, scale: float = 1.0) -> dict[str, float]:
        """Returns what float16 does to the numbers when they are multiplied.

        Args:
            scale (float): A power of two.

        Returns:
            dict: Shares of all numbers: ``'zero'``; ``'below_subnormal'``, less than
            2**-25 but not zero, which are rounded to zero; ``'below_normal'``, less
            than 2**-14, of which bits are lost, those included; ``'overflow'``, 2**16
            or more, or not finite.
        """
        shift = math.frexp(scale)[1] - 1
        exponents = np.arange(_LOWEST, _HIGHEST + 1) + shift
        n = max(1, self.n)

        def share(where: np.ndarray, more: int = 0) -> float:
            return (int(self.counts[where].sum()) + more) / n

        return {
            "zero": self.n_zeros / n,
            # From half the smallest on, numbers are rounded up to it.
            "below_subnormal": share(exponents < _SMALLEST_SUBNORMAL - 1),
            "below_normal": share(exponents < _SMALLEST_NORMAL),
            "overflow": share(exponents > _LARGEST, self.n_not_finite),
        }

    def as_dict(self, scale: float) -> dict[str, Any]:
        """Returns everything, for JSON."""
        return {
            "n": self.n,
            "before": self.shares(),
            "after": self.shares(scale),
            "exponents": {
                str(i + _LOWEST): int(self.counts[i])
                for i in np.flatnonzero(self.counts)
            },
        }


class GradientReport:
    """Histograms of the gradients of a model.

    Args:
        scale (float): The loss scale to show the effect of, a power of two.

    Attributes:
        parameters (dict): An :class:`ExponentHistogram` for each parameter's path.
        activations (dict): The same for gradients of activations, by layer and
            function.
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
            updated_by_chainer (bool): Whether an optimizer has updated them since
                backward without :class:`MixedPrecision`, which leaves gradients scaled.
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
        return 2.0 ** (_LARGEST - 2 - max(highest)) if highest else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Returns everything, for JSON; see :class:`GradientStatistics`."""
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
            path (str): The picture; its ending names the format.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        kinds = [kind for kind in ("parameters", "activations") if getattr(self, kind)]
        figure = Figure(figsize=(11, 3.2 * max(1, len(kinds))), layout="constrained")
        axes = figure.subplots(max(1, len(kinds)), 2, squeeze=False)
        for row, kind in zip(axes, kinds):
            total = self.total(kind)
            for ax, scale in zip(row, (1.0, self.scale)):
                _draw(ax, total, scale)
                ax.set_title(f"gradients of {kind}, times {scale:g}")
        write_picture(path, figure, dpi=100)


def _draw(ax: Any, histogram: ExponentHistogram, scale: float) -> None:
    shift = math.frexp(scale)[1] - 1
    exponents = np.arange(_LOWEST, _HIGHEST + 1) + shift
    ax.axvspan(_SMALLEST_NORMAL, _LARGEST + 1, color="tab:green", alpha=0.15)
    ax.axvspan(_SMALLEST_SUBNORMAL, _SMALLEST_NORMAL, color="tab:orange", alpha=0.15)
    share = histogram.counts / max(1, histogram.n)
    ax.bar(exponents, share, width=1.0, align="edge", color="tab:blue")
    shares = histogram.shares(scale)
    text = "\n".join(
        f"{name.replace('_', ' ')} {value:.1%}" for name, value in shares.items()
    )
    ax.text(0.02, 0.97, text, transform=ax.transAxes, va="top", fontsize=8)
    ax.set_xlim(-60, 20)
    ax.set_xlabel("exponent; float16 normal green, subnormal orange")
    ax.set_ylabel("share of all")


class ActivationGradients(function_hook.FunctionHook):
    """Function hook that counts the gradients functions get for their outputs.

    Names are the layer's position in a :class:`~divisible.Divisible`, or else the depth
    in the graph, and the function's.

    Args:
        report (GradientReport): Where to count; may be replaced.
        optimizer (chainer.Optimizer): Its loss scale is divided out; ``None`` for
            gradients that are not scaled.

    Example:
        >>> import chainer.functions as F, chainer.links as L
        >>> report = GradientReport()
        >>> with ActivationGradients(report):
        ...     F.sum(F.relu(L.Linear(2, 3)(np.ones((4, 2), 'f')))).backward()
        >>> [(name, each.n) for name, each in report.activations.items()]
        [('depth 2: Sum', 1), ('depth 1: ReLU', 12), ('depth 0: LinearFunction', 12)]
    """

    name = "ActivationGradients"

    def __init__(self, report: GradientReport, optimizer: Any = None) -> None:
        super().__init__()
        self.report = report
        self._optimizer = optimizer

    def backward_preprocess(
        self, function: Any, in_data: tuple, out_grad: tuple
    ) -> None:
        """Counts."""
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
    """Trainer extension that says which loss scale a model needs.

    It writes two files: histograms of the exponents of the gradients before and after
    scaling, with the shares that float16 loses, as JSON and as a picture. What a scale
    would do is best seen in a float32 model, ``GradientStatistics(scale=1024)``: what
    float16 has lost already counts as zero.

    The JSON has ``scale``, ``largest_safe_scale`` (the power of two that brings the
    largest gradient seen to a quarter of the range), and for ``parameters`` and
    ``activations`` a ``total`` and ``each``, with ``n``, the shares ``before`` and
    ``after`` as of :meth:`ExponentHistogram.shares`, and the counts of ``exponents``.

    Gradients of parameters are those of the last iteration; those of activations, which
    vanish first, are added up since the last report, which makes backward slower.

    Args:
        scale (float): The scale to show the effect of, a power of two; ``None`` for the
            optimizer's own.
        activations (bool): Whether to look at gradients of activations.
        filename (str): Of the files, without ending; formatted with the trainer, as
            that of :func:`chainer.training.extensions.snapshot`. On several ranks, each
            writes those of its stage: give each another name.
        plot (bool): Whether to draw; needs matplotlib.
        optimizer_name (str): Of the optimizer in the updater.

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
        scale: float | None = None,
        activations: bool = False,
        filename: str = "gradient_statistics_iter_{.updater.iteration}",
        plot: bool = True,
        optimizer_name: str = "main",
    ) -> None:
        if scale is not None and not (scale > 0 and math.frexp(scale)[0] == 0.5):
            raise ValueError(f"scale must be a power of two, not {scale}")
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
        """Begins to look at gradients of activations."""
        if self._activations:
            report = self._new_report(trainer)
            self._hook = ActivationGradients(report, self._optimizer(trainer))
            self._hook.__enter__()

    def finalize(self) -> None:
        """Ends it."""
        if self._hook is not None:
            self._hook.__exit__(None, None, None)

    def __call__(self, trainer: Any) -> None:
        """Writes the report."""
        report = self._new_report(trainer)
        if self._hook is not None:
            report.activations = self._hook.report.activations
            self._hook.report = self._new_report(trainer)
        optimizer = self._optimizer(trainer)
        # By its attribute, which ChainerMN's optimizers around it have as well. With a
        # dynamic scale of its own Chainer updates nothing if a gradient is not finite.
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
    """Whether Chainer's update divides the gradient itself by the loss scale."""
    rule = param.update_rule
    if rule is None or not rule.enabled:
        return False
    # Else it divides a copy.
    return not (rule._use_fp32_update and param.dtype == np.float16)
