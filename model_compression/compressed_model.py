"""The model that the rules of a plan compress, whole or in stages on many ranks.

::

    plan: rule 0       rule 1      rule 2          numbers, chosen among the
          |            |           |               layers of all ranks
          '-- Pruner --'           '-- Quantizer
              |                        |
              masks                    bits, codebooks         of this rank

When a rule takes which step is none of its business: see
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


class CompressedModel:
    """A model that the rules of a plan change, each by its number in the plan.

    Args:
        plan (CompressionPlan): The rules.
        optimizers: Those of this rank, set up with the model or its stages.
        goes_back (bool): Whether a step may be taken back.
        pipeline (pipeline.Pipeline): What trains the model; ``None`` if it is not
            known yet, or there is none.

    Attributes:
        is_checked (bool): Whether the layers of all ranks are known; otherwise
            :meth:`check` is to be called.

    Raises:
        ValueError: If a rule means no layer of the model, two rules change the same of
            one, a layer cannot be changed so, a parameter has no shape yet, or an
            optimizer follows another plan.
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
        self._pipeline, self.is_checked = pipeline, False
        # Why the pipeline refuses calls until channels are taken away once more.
        self._retry: str | None = None
        if pipeline is not None or not any(
            _is_stage(each.target) for each in optimizers
        ):
            self.check(pipeline)
        elif self.follows_channels:
            raise ValueError(
                "who reads a channel may be on another rank: give Compress(...,"
                " pipeline=pipe)"
            )
        else:
            layers = self._layers()
            self._choose(plan.layers_of_rules(layers, is_part=True), layers, {})
        # A plan that is refused leaves the optimizers for another one.
        self._pruner.add_hooks()
        self._quantizer.add_hooks()

    # -- what is compressed ---------------------------------------------------------

    @property
    def follows_channels(self) -> bool:
        """Whether some rule prunes channels, wherever they are read."""
        return self._pruner.follows_channels

    def check(self, pipeline: Any) -> None:
        """Looks at the layers of all ranks; a call of all ranks in a pipeline.

        Args:
            pipeline (pipeline.Pipeline): What trains the model; ``None`` for none.

        Raises:
            ValueError: As of the class, on every rank.
            DisagreementError: If the plans of two ranks differ.
        """
        self._pipeline = pipeline
        said = self._gather(
            (self._plan.settings(), self._layers(), self._pruner.words())
        )
        for rank, (theirs, _, _) in enumerate(said):
            if theirs != said[0][0]:
                raise DisagreementError(
                    f"the compression plans of rank 0 and rank {rank} differ"
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
                up anew, or the model was changed in part.
        """
        if self._pipeline is not None:
            self._pipeline.ranks.calls.check_usable()
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
            RuntimeError: With the cause and the cure.
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
        self._quantizer.choose(by_number, layers)

    def _check_replicas(self) -> None:
        """Refuses ranges of activations that each replica would have for itself."""
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
        return self._pipeline.gather(value, "compress")

    # -- what is done to it: calls of all ranks --------------------------------------

    def updated(self) -> None:
        """Moves the ranges of activations; to be called after each update."""
        grid = getattr(getattr(self._pipeline, "ranks", None), "grid", None)
        self._quantizer.updated(self._gather, has_replicas=grid is not None)

    def ready(self, numbers: Iterable[int]) -> list[int]:
        """Returns which of some rules have what their next step needs.

        By effects on the loss nothing can be pruned before a minibatch has shown any,
        as where mixed precision has skipped the first updates.
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
            degrees: By rule the part to be pruned from now on; of a rule that
                quantizes it does not matter.
        """
        prunes = {n: degree for n, degree in degrees.items() if self._is_pruned(n)}
        if prunes:
            self._pruner.take(prunes, self._gather)
        self._quantizer.take(n for n in degrees if n not in prunes)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Takes the last steps of some rules back."""
        numbers = [*numbers]
        pruned = [number for number in numbers if self._is_pruned(number)]
        self._quantizer.take_back([n for n in numbers if n not in pruned])
        if pruned:
            # Together: none of them may clear what another one has given back.
            self._pruner.take_back(pruned)
            self._quantizer.join()

    def taking_away(
        self, numbers: Iterable[int]
    ) -> tuple[list[Assignment], dict[str, int]]:
        """Makes what stays where channels go, on all ranks, and changes nothing yet.

        Args:
            numbers: The rules whose channels go, where they have set them to zero.

        Returns:
            The assignments that put it in its place on this rank, which are to be done
            while the model is :meth:`changing`; and by the path of a layer how many of
            its channels go, on every rank.

        Raises:
            ValueError: If gradients of earlier minibatches are still to be applied, or
                an update rule keeps what cannot be taken apart.
            DisagreementError: If it has failed on another rank.
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
        """Refuses calls of the pipeline where an error that nobody expects came first.

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
                self._pipeline.ranks.calls.refusal = self._retry
            raise

    def retry(self) -> None:
        """Lets channels be taken away again where that failed and changed nothing."""
        if self._pipeline is not None:
            calls = self._pipeline.ranks.calls
            if calls.refusal is self._retry:
                calls.refusal = None

    @contextlib.contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Refuses each use of the model if a block that changes it does not end.

        Args:
            what: The change, as ``'channels were taken away'``.
        """
        self._refuse(
            f"{what} in part only: make the model, its optimizers, Compress and the"
            f" Pipeline anew, and load a snapshot"
        )
        yield
        self._refuse(None)

    def _refuse(self, refusal: str | None) -> None:
        self._pruner.refuse(refusal)
        if self._pipeline is not None:
            self._pipeline.ranks.calls.refusal = refusal

    def measure(self) -> tuple[float | None, float | None]:
        """Returns how small the whole model is.

        Returns:
            The part of the weights under pruning rules that is zero, and the mean bits
            of those under quantization rules; ``None`` where there are no such weights.
        """
        here = self._pruner.counts(), self._quantizer.counts()
        said = self._gather(here)
        shares = []
        for i in range(2):
            # Tied layers and replicas have one and the same.
            counts = {k: v for theirs in said for k, v in theirs[i].items()}
            found, sizes = zip(*counts.values()) if counts else ((), ())
            shares.append(sum(found) / sum(sizes) if sizes else None)
        return shares[0], shares[1]

    def _is_pruned(self, number: int) -> bool:
        return isinstance(self._plan.rules[number], Prune)

    # -- on disk ----------------------------------------------------------------------

    def prepare(self, model: chainer.Link) -> None:
        """Gives another model what the rules keep in layers, and the sizes of these.

        Args:
            model (chainer.Link): The undivided one, as it was built.
        """
        self._plan.prepare(model)
        self._pruner.prepare(model)

    def serialize_sizes(self, serializer: Any) -> None:
        """Reads or writes how many channels there are, before what has them."""
        self._pruner.serialize_sizes(serializer)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes what is pruned and quantized."""
        self._quantizer.serialize(serializer["quantizer"])
        # Snapshots of a pipeline have these by layer, and leave out such names.
        by_layer = serializer["optimizer:compress"]
        self._pruner.serialize(by_layer)
        self._quantizer.serialize_books(by_layer)


def _is_stage(model: chainer.Link) -> bool:
    """Whether other ranks have other layers of the model, or may have."""
    return bool(getattr(model, "is_stage", False))
