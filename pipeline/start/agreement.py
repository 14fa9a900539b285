"""Compares the announcements that the ranks of a pipeline make at its start.

Each rank sends one announcement and receives those of all. The function `agree` is
pure, so every rank gets the same result from them, or raises the same error::

    rank 0   layers 0 to 6   ---.           .--->  the start
    rank 1   layers 7 to 14  ----+--> all --+--->  the start
    rank 2   refuses: seed   ---'           '--->  its own error; the others' names it
"""

from __future__ import annotations

import os
import socket
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Callable, NamedTuple

import chainer
import numpy as np

from chainer_kernels import is_enabled, providers
from chainer_kernels.threads import blas_threads
from divisible import Divisible
from divisible.communication.errors import DisagreementError
from divisible.dtypes import dtype_of, floating_dtypes
from divisible.early_draws import EarlyDraws
from divisible.layer_texts import differing_titles
from divisible.schedules.actions import Route
from divisible.schedules.schedule import Schedule
from divisible.skips import Skip
from divisible.ties import SharedState, Tie
from divisible.undivided import first_difference
from pipeline.calls.tie_exchange import SharedParameter
from pipeline.stages.loss import Loss
from pipeline.stages.stage_skips import routes_of
from pipeline.start.arguments import Arguments


class StartAnnouncement(NamedTuple):
    """A rank's description of its part, for the other ranks.

    Attributes:
        layer_ranges: Ranges of the layers of its stages, in the order of the model.
        model_layers: A text about each layer of the undivided model.
        skips: Skip connections of the undivided model.
        ties: Parameters that several of its layers use.
        shared_states: Other objects that several of its layers share.
        unsized: Paths of parameters whose shapes are not known yet.
        dtypes: Floating-point types of the stages' parameters.
        loss_uses: Paths of parameters of other stages that the loss uses, if the rank
            has the last stage.
        tied_dtypes: Names of the dtypes of the shared parameters it has, by path.
        settings: Arguments that must be equal on all ranks, as texts, by name.
        host: Name of the host.
        n_threads: Number of threads of this process that compute at once: those of
            BLAS, or of another library that layers compute by, if that has more.
        n_cores: Number of cores that this process may use.
        arithmetic: Name of the library that computes products and convolutions.
        early_draws: Weights that `from_chain` drew, and the state of the generator.
        knows_count: Whether its ``lossfun`` counts samples without their outputs.
        hold_in: Place in which its microbatches wait for their backward.
        streamed: Positions of its layers whose weights are on disk.
    """

    layer_ranges: Sequence[tuple[int, int]]
    model_layers: Sequence[str]
    skips: Sequence[Skip]
    ties: Sequence[Tie]
    shared_states: Sequence[SharedState]
    unsized: Set[str]
    dtypes: Set[np.dtype]
    loss_uses: Sequence[str]
    tied_dtypes: Mapping[str, str]
    settings: Mapping[str, str]
    host: str
    n_threads: int
    n_cores: int
    arithmetic: str
    early_draws: EarlyDraws | None
    knows_count: bool
    hold_in: str = "memory"
    streamed: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        stages: Sequence[Divisible],
        of_loss: Iterable[chainer.Parameter],
        settings: Mapping[str, str],
        knows_count: bool,
        hold_in: str = "memory",
    ) -> StartAnnouncement:
        """Returns the announcement of this rank.

        Args:
            stages: Its stages, in the order of the model.
            of_loss: The parameters of the loss.
            settings: Arguments as texts, by name.
            knows_count: Whether its ``lossfun`` counts samples without their outputs.
            hold_in: Place in which its microbatches wait for their backward.
        """
        last = stages[-1]
        is_last = last.layer_range[1] == len(last.model_layers)
        paths = map(last.path_elsewhere, of_loss) if is_last else ()
        params = {path: p for stage in stages for path, p in stage.namedparams()}
        ties = [tie.path for tie in last.ties]
        return cls(
            layer_ranges=[stage.layer_range for stage in stages],
            model_layers=last.model_layers,
            skips=last.skips,
            ties=last.ties,
            shared_states=last.shared_states,
            unsized={
                path
                for stage in stages
                for path, param in stage.namedparams()
                if not param.is_initialized
            },
            dtypes=set().union(*map(floating_dtypes, stages)),
            loss_uses=[path for path in paths if path],
            tied_dtypes={
                path: dtype_of(params[path]).name for path in ties if path in params
            },
            settings=settings,
            host=socket.gethostname(),
            n_threads=max(blas_threads(), *map(_library_threads, stages)),
            n_cores=_n_cores(),
            arithmetic=providers.active().NAME if is_enabled() else "Chainer's own",
            early_draws=last.early_draws,
            hold_in=hold_in,
            streamed=[
                position
                for stage in stages
                for position, layer in enumerate(stage, stage.layer_range[0])
                if isinstance(layer, chainer.Link) and _is_streamed(layer)
            ],
            knows_count=knows_count,
        )


def _library_threads(stage: Divisible) -> int:
    """Returns how many threads layers of another library compute on."""
    found = (getattr(link, "library_threads", 1) for link in stage.links())
    return max(found, default=1)


class Refusal(str):
    """The reason why a rank cannot take part."""


class Start(NamedTuple):
    """The outcome of the agreement of all ranks at the start.

    Attributes:
        stage_ranks: Rank of each stage of the pipeline.
        named_routes: Routes of skip connections from one stage to another, each with
            the name of its connection.
        shared: Parameters of which several stages have a copy.
        dtypes: Floating-point types of all stages' parameters.
        cuts: Positions at which the layers of the stages begin, and at which the last
            end.
        knows_count: Whether ``lossfun`` counts samples without their outputs.
        name: Name of the pipeline's communicator.
        arguments: This rank's arguments, checked and in plain forms. Arguments that
            must be equal on all ranks are equal.
        loss: Loss behind the last layer, made from the arguments.
        hold_in: Place in which each rank's microbatches wait for their backward.
        streamed: Positions of the layers whose weights are on disk.
    """

    stage_ranks: list[int]
    named_routes: list[tuple[str, Route]]
    shared: list[SharedParameter]
    dtypes: set[np.dtype]
    cuts: list[int]
    knows_count: bool
    name: str = ""
    arguments: Arguments | None = None
    loss: Loss | None = None
    hold_in: Sequence[str] = ()
    streamed: Sequence[int] = ()

    @property
    def routes(self) -> list[Route]:
        """The routes of skip connections, without the names of these."""
        return [route for _, route in self.named_routes]


def agree(said: Sequence[StartAnnouncement | Refusal]) -> Start:
    """Returns how the layers lie on the ranks, from all announcements.

    Args:
        said: Announcements of all ranks, in their order.

    Raises:
        DisagreementError: If a rank refuses, if the stages do not make up one model, or
            if settings differ.
    """
    for rank, word in enumerate(said):
        if isinstance(word, Refusal):
            raise DisagreementError(f"rank {rank} refuses to start: {word}")
    compare_models(said)
    placed = _place(said)
    starts = [start for (start, _), _ in placed]

    def stages_of(*positions: int) -> list[int]:
        return sorted({bisect_right(starts, position) - 1 for position in positions})

    _check_states(said[0].shared_states, stages_of)
    unsized = set().union(*(word.unsized for word in said))
    shared = _find_shared(said[0].ties, stages_of, unsized)
    compare_settings([word.settings for word in said])
    _check_loss(said)
    _compare_tied_dtypes(said)
    dtypes = set().union(*(word.dtypes for word in said))
    stage_ranks = [rank for _, rank in placed]
    skips = said[0].skips
    return Start(
        stage_ranks,
        routes_of(skips, lambda position: stages_of(position)[0], stage_ranks),
        shared,
        dtypes,
        [*starts, len(said[0].model_layers)],
        hold_in=[word.hold_in for word in said],
        streamed=sorted(position for word in said for position in word.streamed),
        knows_count=said[stage_ranks[-1]].knows_count,
    )


def check_placement(schedule: Schedule, stage_ranks: Sequence[int]) -> None:
    """Refuses a schedule that needs the stages on other ranks."""
    if tuple(schedule.stage_ranks) != tuple(stage_ranks):
        raise DisagreementError(
            f"the schedule {schedule.name!r} wants the stages on the ranks"
            f" {list(schedule.stage_ranks)}, but they are on the ranks"
            f" {list(stage_ranks)}"
        )


def compare_models(said: Sequence[StartAnnouncement]) -> None:
    """Refuses ranks that have divided different models.

    Raises:
        DisagreementError: If the models differ.
    """
    first = said[0]
    for rank, word in enumerate(said):
        n, n_first = len(word.model_layers), len(first.model_layers)
        if n != n_first:
            raise DisagreementError(
                f"rank 0 divided a model of {n_first} layers, rank {rank} one of {n}"
            )
        for i, (here, there) in enumerate(zip(first.model_layers, word.model_layers)):
            if here != there:
                here, there = differing_titles(here, there)
                raise DisagreementError(
                    f"rank 0 and rank {rank} built different models: layer {i} is"
                    f" {here} on rank 0 and {there} on rank {rank}"
                )
        if (name := first_difference(first, word)) is not None:
            raise DisagreementError(
                f"rank 0 and rank {rank} built different models, with the {name}"
                f" {getattr(first, name)} and {getattr(word, name)}"
            )


def _place(said: Sequence[StartAnnouncement]) -> list[tuple[tuple[int, int], int]]:
    """Returns the layers and the rank of each stage, in the order of the model."""
    placed = sorted(
        (layer_range, rank)
        for rank, word in enumerate(said)
        for layer_range in word.layer_ranges
    )
    ranks_have = "the ranks have " + ", ".join(
        f"{start} to {end - 1} on rank {rank}" for (start, end), rank in placed
    )
    if len(said) == 1:
        ranks_have += ", the only one: was mpiexec forgotten?"
    position = 0
    for (start, end), rank in placed:
        if start != position:
            raise DisagreementError(
                f"rank {rank} has the layers {start} to {end - 1}, but layer"
                f" {position} comes next; {ranks_have}"
            )
        position = end
    n_layers = len(said[0].model_layers)
    if position != n_layers:
        raise DisagreementError(
            f"no rank has the layers from {position} to {n_layers - 1}; {ranks_have}"
        )
    return placed


def _check_states(
    states: Sequence[SharedState], stages_of: Callable[..., list[int]]
) -> None:
    for path, positions, reason in states:
        stages = stages_of(*positions)
        if len(stages) > 1:
            first, *_, last = positions
            raise DisagreementError(
                f"the layers {first} and {last} have {path} in common, but are in the"
                f" stages {', '.join(map(str, stages))}, which cannot share it:"
                f" {reason}. Cut so that both layers are in one stage"
            )


def _find_shared(
    ties: Sequence[Tie], stages_of: Callable[..., list[int]], unsized: Set[str]
) -> list[SharedParameter]:
    shared = [
        SharedParameter(path, tuple(stages))
        for path, positions in ties
        if len(stages := stages_of(*positions)) > 1
    ]
    for path, stages in shared:
        if path in unsized:
            raise DisagreementError(
                f"{path} is shared by the stages {', '.join(map(str, stages))}, but its"
                f" shape is not known before the first call: give its layer all sizes"
            )
    return shared


def compare_settings(settings: Sequence[Mapping[str, str]]) -> None:
    """Refuses ranks with different settings.

    Raises:
        DisagreementError: If a setting differs.
    """
    first = settings[0]
    for name, here in first.items():
        for rank, theirs in enumerate(settings):
            if theirs[name] != here:
                raise DisagreementError(
                    f"{name} differs between rank 0 and rank {rank}:\n"
                    f"{here}\n{theirs[name]}"
                )


def _check_loss(said: Sequence[StartAnnouncement]) -> None:
    """Refuses a loss that uses a parameter of another stage."""
    for path in (path for word in said for path in word.loss_uses):
        raise DisagreementError(
            f"the loss uses {path}, a parameter of another stage than the last, whose"
            f" optimizer will not see the gradient: tie it to a parameter of a layer in"
            f" the last stage, or cut so that both are there"
        )


def _compare_tied_dtypes(said: Sequence[StartAnnouncement]) -> None:
    """Refuses copies of a shared parameter in different dtypes."""
    found: dict[str, tuple[int, str]] = {}
    for rank, word in enumerate(said):
        for path, dtype in word.tied_dtypes.items():
            first, known = found.setdefault(path, (rank, dtype))
            if dtype != known:
                raise DisagreementError(
                    f"{path} is {known} on rank {first} and {dtype} on rank {rank},"
                    f" where another layer shares it: with to_float16(keep=...) give"
                    f" both layers the same types"
                )


def _is_streamed(layer: chainer.Link) -> bool:
    return any(getattr(param, "is_streamed", False) for param in layer.params())


def _n_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # macOS has no sched_getaffinity.
    return os.cpu_count() or 1
