"""Compression while a model trains, as an extension of Chainer's trainer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np
from chainer.training import Extension

from divisible.communication.errors import DisagreementError
from model_compression.channels import Channels, channels_of
from model_compression.layer_lines import notes
from model_compression.masks import Masks
from model_compression.plan import CompressionPlan, table
from model_compression.scores import (
    ROWS,
    group_shape,
    lowest,
    lowest_rows,
    score,
    spread,
    sums,
)
from model_compression.selection import together, weighted_layers

_BETTER = ("higher", "lower")


class Compress(Extension):
    """Makes a model smaller, step by step, between the updates that train it.

    Each rule of the plan takes its steps when they are due; between them the model
    trains on, with what is pruned at zero. Momentum and other state of pruned elements
    is gone, and float32 master weights are zero where the weights are. So it is on any
    cut of a :class:`~divisible.Divisible`, on all replicas, and in snapshots.

    It reports ``'compress/sparsity'``, the part of the weights under rules that is
    zero, for ``LogReport`` and ``PrintReport``.

    With a metric, a step must not cost more than the tolerance: the rules whose last
    step did take it back, with the values that the weights had, and stop there. What
    the metric was before the first step is what later values are compared with; each
    step waits for the next value after the step before.

    Without a trainer, call :meth:`advance` after each update.

    Args:
        plan (CompressionPlan): What to do.
        optimizer (chainer.Optimizer or list): Set up with the model; all of this rank's
            where several stages have one each.
        metric (str): A name that an evaluator reports, as
            ``'validation/main/accuracy'``; ``None`` for none.
        tolerance (float): By how much the metric may become worse.
        better (str): Whether a ``'higher'`` metric is better, or a ``'lower'`` one.
        pipeline (pipeline.Pipeline): What trains the model, where no
            ``PipelineUpdater`` says so.

    Attributes:
        plan (CompressionPlan): The plan.
        degrees (list of float): The degree that each rule has reached.

    Raises:
        TypeError: If the plan is none.
        ValueError: If a rule means no layer of the model, two rules have one target, or
            a parameter has no shape yet, as before the first minibatch.

    Example:
        >>> import chainer.links as L
        >>> from model_compression import CompressionPlan, Prune
        >>> model = chainer.Sequential(L.Linear(4, 10))
        >>> optimizer = chainer.optimizers.SGD().setup(model)
        >>> compress = Compress(CompressionPlan([Prune("l1", to=0.75)]), optimizer)
        >>> compress.advance(iteration=1, epoch=0.1)
        >>> int((model[0].W.array == 0).sum()), compress.sparsity
        (30, 0.75)
    """

    #: To be called on all ranks at the same minibatch.
    is_collective = True
    trigger = 1, "iteration"
    default_name = "Compress"
    # Right after the update, before layers move and models are evaluated.
    priority = 1100

    def __init__(
        self,
        plan: CompressionPlan,
        optimizer: Any,
        metric: str | None = None,
        tolerance: float | None = None,
        *,
        better: str = "higher",
        pipeline: Any = None,
    ) -> None:
        if not isinstance(plan, CompressionPlan):
            raise TypeError(
                f"plan must be a CompressionPlan, not {type(plan).__name__}"
            )
        _check_metric(metric, tolerance, better)
        self.plan = plan
        self._metric, self._better = metric, better
        self._tolerance = 0.0 if tolerance is None else float(tolerance)
        several = isinstance(optimizer, (list, tuple))
        self._optimizers = list(optimizer) if several else [optimizer]
        for each in self._optimizers:
            if getattr(each, "target", None) is None:
                raise ValueError("the optimizer has no model: call setup(model) first")
        n = len(plan.rules)
        # By rule: its steps, those before the last one, whether it is over, and whether
        # its last step waits to be judged.
        self._taken, self._taken_before = [0] * n, [0] * n
        self._has_ended, self._awaits = [False] * n, [False] * n
        self._base = float("nan")
        self.sparsity = 0.0
        self._masks = Masks(goes_back=metric is not None)
        self._weights: list[dict[str, tuple[int, ...]]] = []
        self._channels: dict[str, Channels] = {}
        self._pipeline, self._is_checked = pipeline, False
        is_part = any(
            getattr(each.target, "is_stage", False) for each in self._optimizers
        )
        if pipeline is not None or not is_part:
            self._check(pipeline)
        elif any(rule.granularity == "channel" for rule in plan.rules):
            raise ValueError(
                "who reads a channel may be on another rank: give Compress(...,"
                " pipeline=pipe)"
            )
        else:
            self._choose(self.plan.weights(self._layers(), is_part=True))
        for each in self._optimizers:
            self._masks.add_to(each)
        self._seen: Mapping[str, Any] = {}

    # -- what is compressed ---------------------------------------------------------

    def _layers(self) -> dict[str, Any]:
        return together(weighted_layers(each.target) for each in self._optimizers)

    def _check(self, pipeline: Any) -> None:
        """Looks at the layers of all ranks; a call of all ranks in a pipeline."""
        self._pipeline = pipeline
        lines = {
            k: v for each in self._optimizers for k, v in notes(each.target).items()
        }
        said = self._gather((self.plan.settings(), self._layers(), lines))
        known = {}
        for rank, (theirs, _, lines) in enumerate(said):
            known.update(lines)
            if theirs != said[0][0]:
                raise DisagreementError(
                    f"the compression plans of rank 0 and rank {rank} differ"
                )
        weights = self.plan.weights(together(layers for _, layers, _ in said))
        self._channels = {
            path: channels_of(path, known, str(rule))
            for rule, chosen in zip(self.plan.rules, weights)
            if rule.granularity == "channel"
            for path in chosen
        }
        self._choose(weights)
        self._is_checked = True

    def _choose(self, weights: Sequence[Mapping[str, tuple[int, ...]]]) -> None:
        self._weights = [dict(each) for each in weights]
        watched, shapes = {}, {}
        for rule, chosen in zip(self.plan.rules, self._weights):
            for path, shape in chosen.items():
                is_watched = rule.method == "taylor"
                watched[path] = rule.granularity if is_watched else None
                shapes[path] = group_shape(shape, rule.granularity)
        for channels in self._channels.values():
            watched.update(dict.fromkeys(channels.parameters))
        self._masks.select(watched, shapes)

    def _with_channels(self, number: int) -> list[str]:
        """Returns the paths of what a rule prunes, with what goes with channels."""
        paths = list(self._weights[number])
        for path in self._weights[number].keys() & self._channels.keys():
            paths += self._channels[path].parameters
        return paths

    def _gather(self, value: Any) -> list:
        if self._pipeline is None:
            return [value]
        return self._pipeline.gather(value, "compress")

    # -- as an extension ------------------------------------------------------------

    def initialize(self, trainer: Any) -> None:
        """Checks the rules on all ranks; called by the trainer.

        Raises:
            ValueError: As of the class, on every rank.
            DisagreementError: If the plans of two ranks differ.
        """
        pipeline = getattr(trainer.updater, "pipeline", None)
        if pipeline is not None or not self._is_checked:
            self._check(pipeline)

    def __call__(self, trainer: Any) -> None:
        """Takes the steps that are due after this minibatch."""
        updater = trainer.updater
        self.advance(updater.iteration, updater.epoch_detail, self._seen)
        # Evaluators come later in this minibatch, and report into the same dictionary.
        self._seen = trainer.observation
        chainer.report({"compress/sparsity": self.sparsity})

    def finalize(self) -> None:
        """Says if the metric was never reported; called by the trainer at its end."""
        if self._metric is not None and not self._taken[0] and np.isnan(self._base):
            warnings.warn(
                f"nothing was compressed: {self._metric!r} was never reported; what"
                f" was is {', '.join(sorted(self._seen)) or 'nothing'}",
                stacklevel=2,
            )

    def serialize(self, serializer: Any) -> None:
        """Reads or writes how far each rule is, and what is pruned."""
        for name in ("_taken", "_taken_before", "_has_ended", "_awaits"):
            kept = np.array(getattr(self, name))
            setattr(self, name, serializer(name.strip("_"), kept).tolist())
        self._base = float(serializer("base", self._base))
        # What was reported after the last update is judged after the next one.
        seen = float(self._seen.get(self._metric, "nan"))
        seen = float(serializer("seen", seen))
        if isinstance(serializer, chainer.Deserializer):
            self._seen = {} if np.isnan(seen) else {self._metric: seen}
        self.sparsity = float(serializer("sparsity", self.sparsity))
        # Snapshots of a pipeline have these by layer, and leave out such names.
        masks = serializer["optimizer:masks"]
        for path, params in self._masks.params().items():
            self._masks.state_of(path, params[0]).serialize(masks[path.strip("/")])

    # -- steps ----------------------------------------------------------------------

    @property
    def degrees(self) -> list[float]:
        """The degree that each rule has reached."""
        return [
            rule.to * rule.progress.share(taken)
            for rule, taken in zip(self.plan.rules, self._taken)
        ]

    def advance(
        self,
        iteration: int,
        epoch: float,
        observed: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the steps that are due; to be called after an update, on every rank.

        Args:
            iteration (int): The minibatches so far.
            epoch (float): The epochs so far, with their part.
            observed (dict): Metrics by name that were found since the last call.

        Raises:
            RuntimeError: If the model is a stage of a pipeline that was not given.
        """
        if not self._is_checked:
            raise RuntimeError(
                "the rules are of the whole model, and this rank has a stage of it:"
                " give Compress(..., pipeline=pipe), or add it to the trainer"
            )
        if self._metric is not None:
            self._judge(observed or {})
            if any(self._awaits) or np.isnan(self._base):
                return
        steps = {}
        for number, rule in enumerate(self.plan.rules):
            step = rule.progress.due(iteration, epoch)
            if step > self._taken[number] and not self._has_ended[number]:
                # The moments of several may have passed, each to be judged for itself.
                one = self._taken[number] + 1
                steps[number] = step if self._metric is None else one
        if not steps:
            return
        params = self._masks.params()
        rows: dict[str, np.ndarray] = {}
        for number, step in steps.items():
            self._taken_before[number], self._taken[number] = self._taken[number], step
            rows.update(self._prune(number, params))
            self._awaits[number] = self._metric is not None
        if any(
            self._weights[number].keys() & self._channels.keys() for number in steps
        ):
            self._prune_channels(rows, params)
        self._count(params)

    def _prune(
        self, number: int, params: Mapping[str, Sequence[chainer.Parameter]]
    ) -> dict[str, np.ndarray]:
        """Prunes weights of this rank, and returns which of their channels."""
        rule, degree = self.plan.rules[number], self.degrees[number]
        choose = lowest_rows if rule.granularity in ROWS else lowest
        host = chainer.get_device("@numpy")
        rows = {}
        for path, shape in self._weights[number].items():
            if path not in params:
                continue
            mask = self._masks.state_of(path, params[path][0])
            pruned = sums(host.send(mask.pruned), rule.granularity)
            is_pruned = pruned == sums(np.ones(shape, np.float32), rule.granularity)
            if rule.method == "taylor":
                scores = mask.scores()
            else:
                weight = host.send(params[path][0].array)
                scores = score(rule.method, weight, rule.granularity)
            more = choose(scores, is_pruned, degree)
            mask.prune(spread(more, shape, rule.granularity), params[path])
            if path in self._channels:
                rows[path] = more[:, 0]
        return rows

    def _prune_channels(
        self,
        rows: Mapping[str, np.ndarray],
        params: Mapping[str, Sequence[chainer.Parameter]],
    ) -> None:
        """Prunes what goes with channels, some of which other ranks have chosen."""
        chosen = {k: v for theirs in self._gather(rows) for k, v in theirs.items()}
        for weight, more in chosen.items():
            for path in self._channels[weight].parameters:
                if path in params:
                    mask = self._masks.state_of(path, params[path][0])
                    mask.prune(more, params[path])

    def _count(self, params: Mapping[str, Sequence[chainer.Parameter]]) -> None:
        """Counts what is zero in the whole model."""
        here = {
            path: (int(self._masks.state_of(path, same[0]).pruned.sum()), same[0].size)
            for path, same in params.items()
            if any(path in chosen for chosen in self._weights)
        }
        counts = {k: v for theirs in self._gather(here) for k, v in theirs.items()}
        pruned, sizes = zip(*counts.values())
        self.sparsity = sum(pruned) / sum(sizes)

    def _judge(self, observed: Mapping[str, Any]) -> None:
        """Takes steps back that have cost too much, once the metric says so."""
        if self._metric not in observed:
            return
        value = float(observed[self._metric])
        if not any(self._taken):
            self._base = value
        if not any(self._awaits):
            return
        worse = self._base - value if self._better == "higher" else value - self._base
        judged, self._awaits = self._awaits, [False] * len(self._awaits)
        # Also if the metric is no number.
        if worse <= self._tolerance:
            return
        params = self._masks.params()
        for number, is_judged in enumerate(judged):
            if not is_judged:
                continue
            self._has_ended[number] = True
            self._taken[number] = self._taken_before[number]
            for path in params.keys() & {*self._with_channels(number)}:
                self._masks.state_of(path, params[path][0]).take_back(params[path])
        self._count(params)

    def __str__(self) -> str:
        """Returns a table of the rules, and how far each is."""
        rows = [("rule", "steps", "degree")]
        for rule, taken, degree in zip(self.plan.rules, self._taken, self.degrees):
            rows.append(
                (str(rule), f"{taken} of {rule.progress.steps}", f"{degree:.1%}")
            )
        return table(rows, right=(1, 2))


def _check_metric(metric: Any, tolerance: Any, better: str) -> None:
    if metric is not None and not isinstance(metric, str):
        raise TypeError(
            f"metric must be a name that is reported, as 'validation/main/accuracy',"
            f" not {type(metric).__name__}"
        )
    if better not in _BETTER:
        raise ValueError(f"better must be 'higher' or 'lower', not {better!r}")
    if tolerance is None:
        return
    if metric is None:
        raise ValueError("a tolerance needs the metric that it is of")
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance must be 0 or more, not {tolerance!r}")
