"""Compression while a model trains, as an extension of Chainer's trainer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import chainer
import numpy as np
from chainer.training import Extension

from chainer_kernels.text_table import text_table
from divisible.number_lists import as_list
from divisible.terminal_text import printable
from divisible.user_warnings import warn_user
from model_compression.compressed_model import CompressedModel
from model_compression.plan import CompressionPlan
from model_compression.rules import Prune
from model_compression.steps import Steps


class Compress(Extension):
    """Makes a model smaller, step by step, between the updates that train it.

    Each rule of the plan takes its steps when they are due. Between steps the model
    trains on, with pruned elements at zero and quantized values in few bits. Momentum
    and other state of pruned elements is cleared, and float32 master weights are zero
    where the weights are. This holds on any cut of a :class:`~divisible.Divisible`, on
    all replicas, and in snapshots.

    For ``LogReport`` and ``PrintReport`` the extension reports two values. The part of
    the weights under pruning rules that is zero is ``'compress/sparsity'``. The mean
    number of bits of the weights under quantization rules is ``'compress/bits'``.

    With a metric, a step must not cost more than the tolerance. Rules whose last step
    did cost more take it back, restoring the values of pruned weights, and stop there.
    Later values of the metric are compared with its value before the first step; each
    step waits for the next value after the step before.

    Without a trainer, call :meth:`advance` after each update.

    Args:
        plan (CompressionPlan): Rules to follow.
        optimizer (chainer.Optimizer, list or dict): Optimizer that is set up with the
            model; all optimizers of this rank where several stages have one each.
        metric (str): Name of a metric that an evaluator reports, such as
            ``'validation/main/accuracy'``; ``None`` for none.
        tolerance (float): Amount by which the metric may become worse.
        better (str): Whether a ``'higher'`` metric is better, or a ``'lower'`` one.
        pipeline (pipeline.Pipeline): Pipeline that trains the model, in a script
            without ``PipelineUpdater``.
        shrink (bool): Whether channels are removed, see :meth:`shrink`, once their rule
            has taken its last step.

    Attributes:
        plan (CompressionPlan): The plan.
        sparsity (float): Part of the weights under pruning rules that is zero.
        bits (float or None): Mean bits of the weights under quantization rules;
            ``None`` without such a rule.

    Raises:
        TypeError: If ``plan`` is not a plan, or ``optimizer`` not an optimizer.
        ValueError: If the optimizer has no model, or follows another plan; or if a rule
            does not fit the model. A rule fits if it names a layer that can be changed
            in this way, and whose parameters have shapes. No other rule may change the
            same part of the layer.

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

    #: Must be called on all ranks at the same minibatch.
    is_collective = True
    trigger = 1, "iteration"
    default_name = "Compress"
    # Runs right after the update, before layers move and models are evaluated.
    priority = 1100

    def __init__(
        self,
        plan: CompressionPlan,
        optimizer: Any,
        *,
        metric: str | None = None,
        tolerance: float | None = None,
        better: str = "higher",
        pipeline: Any = None,
        shrink: bool = False,
    ) -> None:
        if not isinstance(plan, CompressionPlan):
            raise TypeError(
                f"plan must be a CompressionPlan, not {type(plan).__name__}"
            )
        courses = [rule.progress for rule in plan.rules]
        self._steps = Steps(courses, metric, tolerance, better)
        self.plan, self._metric = plan, metric
        if isinstance(optimizer, Mapping):
            optimizer = list(optimizer.values())
        optimizers = as_list(optimizer)
        for each in optimizers or [None]:
            # ChainerMN's optimizers are not subclasses of Chainer's.
            if not hasattr(each, "add_hook") or not hasattr(each, "target"):
                raise TypeError(
                    f"optimizer must be a Chainer optimizer, or a list or dict of them,"
                    f" not {type(optimizer if each is None else each).__name__}"
                )
            if each.target is None:
                raise ValueError("the optimizer has no model: call setup(model) first")
        # Whether channels are to be removed, and by rule, whether its channels were
        # removed.
        self._shrinks, self._has_shrunk = shrink, [False] * len(plan.rules)
        self._skipping = [
            number
            for number, rule in enumerate(plan.rules)
            if getattr(rule, "skip_blocks", False)
        ]
        self.sparsity, self.bits = 0.0, None
        self._seen: Mapping[str, Any] = {}
        self._model = CompressedModel(plan, optimizers, metric is not None, pipeline)

    # -- as an extension ------------------------------------------------------------

    def initialize(self, trainer: Any) -> None:
        """Checks the rules on all ranks; called by the trainer.

        Raises:
            ValueError: If the plan does not fit the model, on every rank.
            DisagreementError: If the plans of two ranks differ.
        """
        pipeline = getattr(trainer.updater, "pipeline", None)
        if pipeline is not None or not self._model.is_checked:
            self._model.check(pipeline)

    def __call__(self, trainer: Any) -> None:
        """Takes the steps that are due after this minibatch."""
        updater = trainer.updater
        self.advance(updater.iteration, updater.epoch_detail, self._seen)
        # Evaluators come later in this minibatch, and report into the same dictionary.
        self._seen = trainer.observation
        kinds = {type(rule) for rule in self.plan.rules}
        if Prune in kinds:
            chainer.report({"compress/sparsity": self.sparsity})
        if self.bits is not None:
            chainer.report({"compress/bits": self.bits})

    def finalize(self) -> None:
        """Warns if the metric was never reported; called by the trainer at its end."""
        if self._metric is not None and not self._steps.has_base:
            warn_user(
                f"nothing was compressed: {self._metric!r} was never reported; the"
                f" reported names are {', '.join(sorted(self._seen)) or 'nothing'}",
            )

    def serialize(self, serializer: Any) -> None:
        """Reads or writes how far each rule is, and which elements are pruned.

        Raises:
            ValueError: If the state was written under another plan, or when a model
                that no pipeline trains had another number of channels.
            RuntimeError: If the model was changed in part.
        """
        self._model.check_whole()
        plan = zlib.crc32(json.dumps(self.plan.settings()).encode())
        if int(serializer("plan", plan)) != plan:
            raise ValueError(
                f"the snapshot was saved under another compression plan than\n"
                f"{self.plan}\nResume with the plan that it was saved under, or load"
                f" the model alone and give the plan that is to follow"
            )
        self._steps.serialize(serializer)
        if self._model.follows_channels:
            self._model.serialize_sizes(serializer)
            kept = serializer("has_shrunk", np.array(self._has_shrunk))
            self._has_shrunk = kept.tolist()
        # Values that were reported after the last update are judged after the next one.
        seen = float(self._seen.get(self._metric, "nan"))
        seen = float(serializer("seen", seen))
        if isinstance(serializer, chainer.Deserializer):
            self._seen = {} if np.isnan(seen) else {self._metric: seen}
        self.sparsity = float(serializer("sparsity", self.sparsity))
        bits = float(
            serializer("bits", float("nan") if self.bits is None else self.bits)
        )
        self.bits = None if np.isnan(bits) else bits
        self._model.serialize(serializer)

    # -- steps ----------------------------------------------------------------------

    @property
    def degrees(self) -> list[float]:
        """For each rule the part that is pruned so far, or 1 for quantized."""
        return [
            getattr(rule, "to", 1.0) * rule.progress.share(taken)
            for rule, taken in zip(self.plan.rules, self._steps.taken)
        ]

    def advance(
        self,
        iteration: int,
        epoch: float,
        observed: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the steps that are due; call it after each update, on every rank.

        Args:
            iteration (int): Number of minibatches so far.
            epoch (float): Number of epochs so far, with a fraction.
            observed (dict): Metrics by name that were found since the last call.

        Raises:
            RuntimeError: If the model is a stage of a pipeline that was not given.
        """
        self._model.check_usable()
        self._model.updated()
        if self._metric in (observed or {}):
            self._judge(float(observed[self._metric]))
        steps = self._steps.due(iteration, epoch)
        ready = self._model.ready(list(steps)) if steps else []
        steps = {number: steps[number] for number in ready}
        if steps:
            with self._model.changing("weights were pruned or quantized"):
                self._steps.take(steps)
                self._model.take({number: self.degrees[number] for number in steps})
                self._measure()
        if self._shrinks:
            self.shrink()
        if self._skipping:
            over = [n for n in self._skipping if self._steps.are_over(n)]
            self._model.skip(over)

    def shrink(self) -> dict[str, int]:
        """Removes channels from a model that trains; a call of all ranks.

        Call it between two minibatches. It removes the channels that rules with
        ``granularity='channel'`` have set to zero, once a rule has taken its last step.
        The channels are removed from the layer that outputs them, the normalization
        after it, and the layer that reads them, on any ranks. Their gradients, float32
        masters, and states of optimizers and masks are removed too. The model, its
        stages and its optimizers stay the same objects, and training continues as with
        channels of zeros, up to the order of additions.

        Save the smaller model by :func:`pipeline.save_snapshot`, on one rank as well:
        :func:`pipeline.load_snapshot` and ``PipelineUpdater``'s trainers give layers
        the sizes of a snapshot, which ``chainer.serializers.load_npz`` does not.

        There are some differences. Dropout that reads fewer channels draws other
        numbers; in a script without a pipeline, so does all later code that uses the
        same generator. A hook that needs all gradients, such as ``GradientClipping``,
        gets the remaining ones. Later steps of other rules prune parts of the remaining
        weights, and ranges of inputs and outputs follow the remaining channels. The
        error feedback of an exchange starts again from zero for parameters that have
        become smaller.

        All new arrays are made before the first one replaces an old one, so they need
        extra memory. If a rank has too little memory, no rank has changed. The pipeline
        then refuses steps and snapshots until ``shrink()`` has succeeded, or a snapshot
        is loaded. If anything stops the change itself, such as a signal, the model must
        not be used any more, and each use of it is an error.

        Returns:
            dict: The number of channels that were removed, by the path of a layer, on
            every rank; empty without any.

        Raises:
            RuntimeError: If the model is a stage of a pipeline that was not given, or
                was changed in part before.
            ValueError: If gradients of earlier minibatches are still to be applied. If
                an update rule on any rank keeps arrays that are neither of a
                parameter's shape nor one number. Nothing was changed, and training may
                continue.
            MemoryError: If memory is too small. Nothing was changed.
            DisagreementError: If the call has failed on another rank. Nothing was
                changed.

        Example:
            >>> import chainer.functions as F
            >>> import chainer.links as L
            >>> from model_compression import CompressionPlan, Prune
            >>> model = chainer.Sequential(L.Linear(4, 10), F.relu, L.Linear(10, 2))
            >>> optimizer = chainer.optimizers.Adam().setup(model)
            >>> rule = Prune("l2", layers="/0", to=0.7, granularity="channel")
            >>> plan = CompressionPlan([rule])
            >>> compress = Compress(plan, optimizer)
            >>> compress.advance(iteration=1, epoch=0.1)
            >>> compress.shrink(), model[0].W.shape, model[2].W.shape
            ({'/0': 7}, (3, 4), (2, 3))
        """
        self._model.retry()
        self._model.check_usable()
        over = [
            number
            for number, rule in enumerate(self.plan.rules)
            if getattr(rule, "granularity", None) == "channel"
            and self._steps.are_over(number)
            and not self._has_shrunk[number]
        ]
        if not over:
            return {}
        assignments, found = self._model.taking_away(over)
        with self._model.changing("channels were taken away"):
            for assign in assignments:
                assign()
            for number in over:
                self._has_shrunk[number] = True
        return found

    def prepare(self, model: chainer.Link) -> chainer.Link:
        """Gives the layers of a model the rules' values, and the present sizes.

        Use it to let layers move after :meth:`shrink`: ``Rebalance(lambda:
        compress.prepare(build()))``; or before reading a file that was written after
        it.

        Args:
            model (chainer.Link): Undivided model, as it was built. Its layers need not
                be made yet.

        Returns:
            chainer.Link: The model, into which values can then be read. See also
            :meth:`CompressionPlan.prepare`.
        """
        self._model.prepare(model)
        return model

    def _measure(self) -> None:
        sparsity, self.bits = self._model.measure()
        self.sparsity = sparsity or 0.0

    def _judge(self, value: float) -> None:
        """Takes back the steps that have cost too much."""
        with self._model.changing("steps of compression were taken back"):
            dear = self._steps.judge(value)
            self._model.take_back(dear)
            if dear:
                self._measure()

    def __str__(self) -> str:
        """Returns a table of the rules, and how far each is."""
        rows = [("rule", "steps", "degree")]
        for rule, taken, degree in zip(
            self.plan.rules, self._steps.taken, self.degrees
        ):
            rows.append(
                (
                    printable(str(rule)),
                    f"{taken} of {rule.progress.steps}",
                    f"{degree:.1%}",
                )
            )
        return text_table(rows, left=(0,))
