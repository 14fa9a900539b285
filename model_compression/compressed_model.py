"""A model that the rules of a plan compress, whole or in stages on many ranks.

::

    plan: rule 0       rule 1      rule 2          numbers, chosen among the
          |            |           |               layers of all ranks
          '-- Pruner --'           '-- Quantizer
              |                        |
              masks                    bits, codebooks         of this rank

The steps of the rules are decided elsewhere: see
:class:`~model_compression.steps.Steps`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import chainer

from divisible.communication.attempts import on_all_ranks
from divisible.communication.errors import DisagreementError
from model_compression.plan import CompressionPlan
from model_compression.pruning import Pruner
from model_compression.quantizing import Quantizer
from model_compression.rules import ACTIVATIONS, Prune, Quantize
from model_compression.selection import (
    Weighted,
    together,
    weighted_layers,
    weights_of,
)
from model_compression.shrinking import Assignment, joined, parts_left
from model_compression.skipping import Skipper, check_sizes


class CompressedModel:
    """A model that the rules of a plan change, each rule by its number in the plan.

    Args:
        plan (CompressionPlan): The rules.
        optimizers: Optimizers of this rank, set up with the model or its stages.
        goes_back (bool): Whether a step may be taken back.
        pipeline (pipeline.Pipeline): Pipeline that trains the model; ``None`` if it is
            not known yet, or there is none.

    Attributes:
        is_checked (bool): Whether the layers of all ranks are known; otherwise
            :meth:`check` is to be called.

    Raises:
        ValueError: If a rule does not fit the model, a parameter has no shape yet, or
            an optimizer follows another plan. A rule fits if it names a layer, no other
            rule changes the same part of it, and the layer can be changed in this way.
        DisagreementError: If the plans of two ranks differ.
    """

    def __init__(
        self,
        plan: CompressionPlan,
        optimizers: Sequence[Any],
        goes_back: bool = False,
        pipeline: Any = None,
    ) -> None:
        self._plan, self._optimizers = plan, optimizers
        rules = dict(enumerate(plan.rules))
        self._pruner = Pruner(
            {n: rule for n, rule in rules.items() if isinstance(rule, Prune)},
            optimizers,
            goes_back=goes_back,
        )
        self._quantizer = Quantizer(
            {n: rule for n, rule in rules.items() if isinstance(rule, Quantize)},
            optimizers,
        )
        skipping = {n: r for n, r in rules.items() if getattr(r, "skip_blocks", False)}
        self._skipper = Skipper(skipping, optimizers, self._pruner.masks)
        self._pipeline, self.is_checked = pipeline, False
        # Why the pipeline refuses calls until channels are removed again.
        self._retry: str | None = None
        if pipeline is not None or not any(
            _is_stage(each.target) for each in optimizers
        ):
            self.check(pipeline)
        elif self.follows_channels:
            raise ValueError(
                "a layer that reads a channel may be on another rank: give"
                " Compress(..., pipeline=pipe)"
            )
        else:
            layers = self._layers()
            self._choose(plan.layers_of_rules(layers, is_part=True), layers, {})
        # A plan that is refused leaves the optimizers free for another one.
        self._pruner.add_hooks()
        self._quantizer.add_hooks()

    # -- what is compressed ---------------------------------------------------------

    @property
    def follows_channels(self) -> bool:
        """Whether a rule prunes channels, and so changes the layers that read them."""
        return self._pruner.follows_channels

    def check(self, pipeline: Any) -> None:
        """Checks the layers of all ranks; a call of all ranks in a pipeline.

        Args:
            pipeline (pipeline.Pipeline): Pipeline that trains the model; ``None`` for
                none.

        Raises:
            ValueError: If the plan does not fit the model, on every rank.
            DisagreementError: If the plans of two ranks differ.
        """
        self._pipeline = pipeline
        said = self._gather(
            (self._plan.settings(), self._layers(), self._pruner.words())
        )
        for rank, (theirs, _, _) in enumerate(said):
            if theirs != said[0][0]:
                raise DisagreementError(
                    f"the compression plans of rank 0 and rank {rank} differ: give all"
                    f" ranks the same rules"
                )
        layers = together(layers for _, layers, _ in said)
        known = {k: v for _, _, words in said for k, v in words.items()}
        chosen = self._plan.layers_of_rules(layers)
        self._check_replicas()
        self._choose(chosen, layers, known)
        self.is_checked = True

    def check_usable(self) -> None:
        """Refuses to change a stage of a model that is not known as a whole.

        Raises:
            RuntimeError: If :meth:`check` is still to be called, an optimizer was set
                up again, or the model was changed in part.
        """
        if self._pipeline is not None:
            self._pipeline.internals.ranks.calls.check_usable()
        self._pruner.check_usable()
        self._quantizer.check_usable()
        if not self.is_checked:
            raise RuntimeError(
                "the rules are of the whole model, and this rank has a stage of it:"
                " give Compress(..., pipeline=pipe), or add it to the trainer"
            )

    def check_whole(self) -> None:
        """Refuses a model that was changed in part.

        Raises:
            RuntimeError: If the model was changed in part; the message has the cause
                and the cure.
        """
        self._pruner.check_whole()

    def _layers(self) -> dict[str, Weighted]:
        return together(weighted_layers(each.target) for each in self._optimizers)

    def _choose(
        self,
        chosen: Sequence[Sequence[str]],
        layers: Mapping[str, Weighted],
        known: Mapping[Any, Any],
    ) -> None:
        by_number = dict(enumerate(chosen))
        quantized = {
            weight
            for rule, paths in zip(self._plan.rules, chosen)
            if isinstance(rule, Quantize) and "weight" in rule.targets
            for weight in weights_of(paths, layers)
        }
        self._pruner.choose(by_number, layers, known, quantized)
        check_sizes(self._plan.rules, chosen, self._pruner.channels.values(), layers)
        self._quantizer.choose(by_number, layers)
        self._skipper.choose(by_number, layers)

    def _check_replicas(self) -> None:
        """Refuses ranges of activations that each replica would find for itself."""
        looks = [
            rule
            for rule in self._plan.rules
            if isinstance(rule, Quantize) and {*rule.targets} & {*ACTIVATIONS}
        ]
        for each in self._optimizers if looks and self._pipeline is None else []:
            if getattr(getattr(each, "communicator", None), "size", 1) > 1:
                raise ValueError(
                    f"{looks[0]}: each replica would have ranges of its own: train with"
                    f" a Pipeline on a Grid, which may have one stage, or leave out the"
                    f" targets input and output"
                )

    def _gather(self, value: Any) -> list:
        if self._pipeline is None:
            return [value]
        return self._pipeline.internals.gather(value, "compress")

    # -- what is done to it: calls of all ranks --------------------------------------

    def updated(self) -> None:
        """Moves the ranges of activations; call it after each update."""
        grid = None if self._pipeline is None else self._pipeline.internals.ranks.grid
        self._quantizer.updated(self._gather, has_replicas=grid is not None)

    def ready(self, numbers: Iterable[int]) -> list[int]:
        """Returns the rules that can take their next step.

        A rule that prunes by effects on the loss cannot prune before a minibatch has
        updated weights. Mixed precision may have skipped the first updates.
        """
        watching = self._pruner.watches(n for n in numbers if self._is_pruned(n))
        if not watching:
            return list(numbers)
        said = self._gather([n for n in watching if self._pruner.has_effects(n)])
        known = {number for theirs in said for number in theirs}
        return [n for n in numbers if n not in watching or n in known]

    def take(self, degrees: Mapping[int, float]) -> None:
        """Takes a step of some rules.

        Args:
            degrees: Part to be pruned after this step, by rule; ignored for rules that
                quantize.
        """
        prunes = {n: degree for n, degree in degrees.items() if self._is_pruned(n)}
        if prunes:
            self._pruner.take(prunes, self._gather)
        self._quantizer.take(n for n in degrees if n not in prunes)

    def skip(self, numbers: Iterable[int]) -> None:
        """Goes on to skip the blocks that some rules have pruned, which are over."""
        self._skipper.advance(numbers, self._gather)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Takes the last steps of some rules back."""
        numbers = [*numbers]
        pruned = [number for number in numbers if self._is_pruned(number)]
        self._quantizer.take_back([n for n in numbers if n not in pruned])
        if pruned:
            # Taken back together: a rule must not clear elements that another one
            # restores.
            self._pruner.take_back(pruned)
            self._quantizer.join()

    def taking_away(
        self, numbers: Iterable[int]
    ) -> tuple[list[Assignment], dict[str, int]]:
        """Makes the remaining arrays without some channels, on all ranks.

        Args:
            numbers: Rules whose channels go, where the rules have set them to zero.

        Returns:
            The assignments that replace the arrays on this rank, to be made while the
            model is :meth:`changing`; and the number of channels that go, by the path
            of a layer, on every rank.

        Raises:
            ValueError: If gradients of earlier minibatches are still to be applied, or
                an update rule has a state that cannot be divided.
            DisagreementError: If the call has failed on another rank.
        """
        for each in self._optimizers:
            if getattr(each, "double_buffering", False):
                raise ValueError(
                    "with double_buffering gradients of all channels are under way"
                    " between two minibatches: take channels away without it"
                )
        gone = self._pruner.gone(numbers, self._gather)
        left = joined(parts_left(each.channels, each.kept) for each in gone)

        def make() -> list[Assignment]:
            return [
                *self._pruner.taking_away(gone, left),
                *self._quantizer.taking_away(left),
            ]

        found = {each.channels.layer: each.n for each in gone}
        with self._made_or_refused():
            if not gone:
                return [], found
            what = "nothing was changed"
            made = on_all_ranks(self._gather, what, make, refusal=ValueError)
            return made, found

    @contextlib.contextmanager
    def _made_or_refused(self) -> Iterator[None]:
        """Refuses calls of the pipeline after an error of any unexpected kind.

        Nothing was changed, so the same call may be made again.
        """
        try:
            yield
        except BaseException as error:
            is_refused = isinstance(error, ValueError)
            if is_refused and not isinstance(error, DisagreementError):
                raise
            self._retry = (
                f"taking channels away failed, and changed nothing:"
                f" {type(error).__name__}: {error}. Call shrink() again on every rank,"
                f" or load a snapshot"
            )
            if self._pipeline is not None:
                self._pipeline.internals.ranks.calls.refusal = self._retry
            raise

    def retry(self) -> None:
        """Allows to remove channels again after a failure that changed nothing."""
        if self._pipeline is not None:
            calls = self._pipeline.internals.ranks.calls
            if calls.refusal is self._retry:
                calls.refusal = None

    @contextlib.contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Refuses each use of the model if a block that changes it does not end.

        Args:
            what: The change, such as ``'channels were taken away'``.
        """
        self._refuse(
            f"{what} in part only: make the model, its optimizers, Compress and the"
            f" Pipeline again, and load a snapshot"
        )
        yield
        self._refuse(None)

    def _refuse(self, refusal: str | None) -> None:
        pipeline = self._pipeline
        calls = None if pipeline is None else pipeline.internals.ranks.calls
        # No call in between may fail and leave one of the two without the refusal.
        self._pruner.refuse(refusal)
        if calls is not None:
            calls.refusal = refusal

    def measure(self) -> tuple[float | None, float | None]:
        """Returns the sparsity and the bits of the whole model.

        Returns:
            The part of the weights under pruning rules that is zero, and the mean bits
            of the weights under quantization rules; ``None`` where there are no such
            weights.
        """
        here = self._pruner.counts(), self._quantizer.counts()
        said = self._gather(here)
        shares = []
        for i in range(2):
            # Tied layers and replicas have the same counts.
            counts = {k: v for theirs in said for k, v in theirs[i].items()}
            found, sizes = zip(*counts.values()) if counts else ((), ())
            shares.append(sum(found) / sum(sizes) if sizes else None)
        return shares[0], shares[1]

    def _is_pruned(self, number: int) -> bool:
        return isinstance(self._plan.rules[number], Prune)

    # -- on disk ----------------------------------------------------------------------

    def prepare(self, model: chainer.Link) -> None:
        """Gives the layers of another model the rules' values and the present sizes.

        Args:
            model (chainer.Link): Undivided model, as it was built.
        """
        self._plan.prepare(model)
        self._pruner.prepare(model)

    def serialize_sizes(self, serializer: Any) -> None:
        """Reads or writes the numbers of channels, before the arrays that have them.

        Raises:
            ValueError: If the snapshot has others, and no pipeline has resized layers.
        """
        self._pruner.serialize_sizes(serializer, self._pipeline is not None)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the state of pruning and quantization."""
        self._quantizer.serialize(serializer["quantizer"])
        if self._skipper.rules:
            self._skipper.serialize(serializer)
        # Snapshots of a pipeline store these states by layer, and skip such names.
        by_layer = serializer["optimizer:compress"]
        self._pruner.serialize(by_layer)
        self._quantizer.serialize_books(by_layer)


def _is_stage(model: chainer.Link) -> bool:
    """Returns whether other ranks have other layers of the model, or may have."""
    return bool(getattr(model, "is_stage", False))
