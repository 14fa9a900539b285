"""The log of a training for loggers such as TensorBoard, as a trainer's extension."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Callable

from chainer import training

from divisible.schedules.plot import timeline_figure
from divisible.schedules.timeline import Timeline
from divisible.user_warnings import warn_user

# Methods by which loggers take the numbers of a step, the first that a logger has.
_METHODS = ("add_scalar", "log_metrics", "log")


class LoggerReport(training.Extension):
    """Hands the entries of a trainer's log to a logger, and the last step's timeline.

    Add it to the trainers of all ranks, beside Chainer's ``LogReport``, with the logger
    on rank 0. By default it hands over after each epoch: entries of the log since the
    last time, at their own iterations. With ``timeline=True`` come the makespan, and
    the bubble and the seconds of computation of each rank. A logger with ``add_figure``
    or MLflow's ``log_figure`` gets the picture as well. If the logger fails, rank 0
    warns once, and the training goes on.

    Args:
        logger: Logger on rank 0, and ``None`` on the other ranks. One of the methods
            ``add_scalar(name, value, step)``, as of TensorBoard's ``SummaryWriter``,
            ``log_metrics(values, step=)``, as of MLflow, or ``log(values, step=)``, as
            of Weights and Biases and Trackio, takes the numbers.
        timeline (bool): Whether to measure the timeline, the same on all ranks.
        log_report (str): Name of the extension ``LogReport``.
        prefix (str): Beginning of the names of numbers from the timeline.

    Raises:
        TypeError: If the logger has none of these methods.

    Example:
        >>> class Printed:
        ...     def log(self, values, step):
        ...         print(step, values)
        >>> LoggerReport(Printed()).trigger
        (1, 'epoch')
    """

    trigger = 1, "epoch"
    # After LogReport, which makes the entries.
    priority = training.PRIORITY_READER - 10
    default_name = "LoggerReport"

    def __init__(
        self,
        logger: Any | None = None,
        *,
        timeline: bool = False,
        log_report: str = "LogReport",
        prefix: str = "pipeline/",
    ) -> None:
        self._hand_over = None if logger is None else _hand_over(logger)
        self._add_figure = _add_figure(logger)
        #: Whether all ranks must call it at the same minibatch, whatever its trigger.
        self.is_collective = timeline
        self._log_report, self._prefix = log_report, prefix
        self._n_handed = 0
        self._has_failed = False

    def initialize(self, trainer: Any) -> None:
        """Checks that there is a log.

        Raises:
            ValueError: If the trainer of the rank with the logger has no ``LogReport``.
        """
        if self._hand_over is None:
            return
        try:
            trainer.get_extension(self._log_report)
        except ValueError as error:
            raise ValueError(
                f"LoggerReport hands over the entries of {self._log_report!r}, and the"
                f" trainer has no such extension: extend it with"
                f" chainer.training.extensions.LogReport() before"
            ) from error

    def serialize(self, serializer: Any) -> None:
        """Saves or loads the number of entries that the logger has."""
        self._n_handed = serializer("n_handed", self._n_handed)

    def __call__(self, trainer: Any) -> None:
        """Hands over new entries; with ``timeline``, measures it on all ranks."""
        timeline = trainer.updater.pipeline.timeline() if self.is_collective else None
        if self._hand_over is None:
            return
        entries = trainer.get_extension(self._log_report).log
        new, self._n_handed = entries[self._n_handed :], len(entries)
        try:
            for entry in new:
                self._hand_over(_numbers(entry), int(entry["iteration"]))
            if timeline is not None:
                self._hand_timeline(timeline, trainer.updater.iteration)
        # A logger of another project, which may be on another host.
        except Exception as error:
            self._warn(error)

    def _hand_timeline(self, timeline: Timeline, step: int) -> None:
        values = {"step_seconds": timeline.makespan}
        values["bubble"] = float(timeline.bubble.mean())
        for name in ("bubble", "busy"):
            for rank, value in enumerate(getattr(timeline, name).tolist()):
                values[f"rank_{rank}/{name}"] = value
        named = {self._prefix + name: value for name, value in values.items()}
        self._hand_over(named, step)
        if self._add_figure is not None:
            figure = timeline_figure(timeline)
            self._add_figure(f"{self._prefix}timeline", figure, step)

    def _warn(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            warn_user(
                f"the logger of LoggerReport failed: {type(error).__name__}: {error}."
                f" The training goes on, and later failures are not reported. The"
                f" entries are in the log of {self._log_report}."
            )


def _hand_over(logger: Any) -> Callable[[Mapping[str, float], int], None]:
    """Returns a function that hands numbers and their step to a logger.

    Raises:
        TypeError: If the logger has no method for it.
    """
    name = next((each for each in _METHODS if hasattr(logger, each)), None)
    if name is None:
        raise TypeError(
            f"a {type(logger).__name__} has none of the methods"
            f" {', '.join(_METHODS)}: give a logger that has one"
        )
    method = getattr(logger, name)
    if name != "add_scalar":
        return lambda values, step: method(dict(values), step=step)

    def add_all(values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            method(key, value, step)

    return add_all


def _add_figure(logger: Any) -> Callable[[str, Any, int], None] | None:
    """Returns a function that hands a named picture of a step to a logger.

    ``None`` if the logger takes no pictures.
    """
    if hasattr(logger, "add_figure"):
        return logger.add_figure
    if hasattr(logger, "log_figure"):
        # MLflow has files in place of steps.
        return lambda name, figure, step: logger.log_figure(
            figure, f"{name}_{step}.png"
        )
    return None


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of an entry, without the step.

    Example:
        >>> _numbers({'iteration': 3, 'main/loss': 0.5, 'note': 'x'})
        {'main/loss': 0.5}
    """
    return {
        name: float(value)
        for name, value in entry.items()
        if isinstance(value, Real) and name != "iteration"
    }
