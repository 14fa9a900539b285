"""Makes a failing case smaller, as long as it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from divisible.schedules.catalogue import Placement
from tests.composition import models
from tests.composition.blocks import auxiliaries
from tests.composition.cases import Case, Model, Way
from tests.composition.losses import OF_AUXILIARIES

#: Most cases that are run to shrink one.
MOST_TRIALS = 60


def shrink(case: Case, fails: Callable[[Case], bool], most: int = MOST_TRIALS) -> Case:
    """Returns a smaller case that fails as well.

    Args:
        case: A case that fails.
        fails: Runs a case, and returns whether it fails.
        most: Number of cases to run at most.
    """
    n_trials = 0
    smaller = True
    while smaller and n_trials < most:
        smaller = False
        for candidate in candidates(case):
            n_trials += 1
            if fails(candidate):
                case, smaller = candidate, True
                break
            if n_trials >= most:
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Yields cases that are a step smaller, those with the largest steps first."""
    yield from _shorter(case)
    yield from _simpler_ways(case)
    yield from _simpler_models(case)
    for name, plain in (
        ("hooks", ()),
        ("rates", ()),
        ("compression", ""),
        ("rule", "SGD"),
        ("loss_scale", 0),
    ):
        if case.model.dtype == "float16" and name == "loss_scale":
            plain = 64.0
        if getattr(case.update, name) != plain:
            yield _with(case, update=_with(case.update, **{name: plain}))


def _with(value: Any, **changes: Any) -> Any:
    return dataclasses.replace(value, **changes)


def _shorter(case: Case) -> Iterator[Case]:
    life = case.life
    for i in range(len(life.events)):
        events = life.events[:i] + life.events[i + 1 :]
        yield _with(case, life=_with(life, events=events))
    if life.accumulates:
        yield _with(case, life=_with(life, accumulates=()))
    if len(life.sizes) > 1:
        n = len(life.sizes) - 1
        for part in (slice(1, None), slice(None, -1)):
            events = tuple(_with(e, before=min(e.before, n)) for e in life.events)
            shorter = {"sizes": life.sizes[part], "lengths": life.lengths[part]}
            shorter["accumulates"] = tuple(i for i in life.accumulates if i < n)
            yield _with(case, life=_with(life, events=events, **shorter))


def _simpler_ways(case: Case) -> Iterator[Case]:
    for number, way in enumerate(case.ways):
        for simpler in _simpler_way(way):
            yield _with_way(case, number, simpler)


def _with_way(case: Case, number: int, way: Way) -> Case:
    """Returns a case with another way in the place of one; moves keep their number."""
    if number == 0:
        found = _with(case, way=way)
    else:
        events = list(case.life.events)
        places = [i for i, event in enumerate(events) if event.way is not None]
        events[places[number - 1]] = _with(events[places[number - 1]], way=way)
        found = _with(case, life=_with(case.life, events=tuple(events)))
    return with_fitting_cuts(found)


def _simpler_way(way: Way) -> Iterator[Way]:
    if way.n_replicas > 1:
        n = way.n_pipeline
        yield _with(way, n_ranks=n, n_replicas=1, shares=(), exchange=())
    if way.n_pipeline > 1:
        n = way.n_pipeline - 1
        ranks = Placement.LOOP.ranks(n, n)
        n_ranks = n * way.n_replicas
        yield _with(way, n_ranks=n_ranks, schedule="1f1b", stage_ranks=ranks)
    if way.schedule != "1f1b":
        n = way.n_pipeline
        ranks = Placement.LOOP.ranks(n, n)
        yield _with(way, schedule="1f1b", stage_ranks=ranks)
    for name, _ in way.options:
        options = tuple(pair for pair in way.options if pair[0] != name)
        yield _with(way, options=options)
    if way.n_microbatches > 1:
        yield _with(way, n_microbatches=1)
        yield _with(way, n_microbatches=way.n_microbatches - 1)
    if way.shares:
        yield _with(way, shares=())
    if way.products:
        yield _with(way, products="")
    elif way.has_kernels:
        yield _with(way, has_kernels=False)
    if len(way.exchange) > 3:
        kept = ("exchange_dtype", "local_size", "minimum")
        yield _with(way, exchange=tuple(p for p in way.exchange if p[0] in kept))


def _simpler_models(case: Case) -> Iterator[Case]:
    model = case.model
    for i in range(len(model.blocks)):
        smaller = without_block(model, i)
        if smaller is not None:
            rates = _without(case.update.rates, i)
            update = _with(case.update, rates=rates)
            yield with_fitting_cuts(_with(case, model=smaller, update=update))
    for name, plain in (
        ("ties", ()),
        ("frozen", ()),
        ("n_inputs", 1),
        ("is_deferred", "streamed" in model.blocks),
        ("loss", _plain_loss(model)),
    ):
        if getattr(model, name) != plain:
            yield _with(case, model=_with(model, **{name: plain}))


def without_block(model: Model, i: int) -> Model | None:
    """Returns a model without a block, and without what belongs to it."""
    name = model.blocks[i]
    gone = {i}
    if name.startswith(("stash ", "pop ")):
        skip = name.split()[1]
        gone = {
            j
            for j, other in enumerate(model.blocks)
            if other.split()[:2] in (["stash", skip], ["pop", skip])
        }
    blocks = tuple(b for j, b in enumerate(model.blocks) if j not in gone)
    ties = tuple(tie for tie in model.ties if not gone & {*tie[:2]})
    frozen = model.frozen
    for j in sorted(gone, reverse=True):
        ties = tuple((a - (a > j), b - (b > j), turned) for a, b, turned in ties)
        frozen = _without(frozen, j)
    smaller = _with(model, blocks=blocks, ties=ties, frozen=frozen)
    if name.startswith("auxiliary "):
        smaller = _with(smaller, loss=_plain_loss(smaller))
    return smaller


def _plain_loss(model: Model) -> str:
    if model.n_outputs == 2:
        return "two outputs"
    return OF_AUXILIARIES[len(auxiliaries(model.blocks))]


def _without(blocks: tuple[int, ...], gone: int) -> tuple[int, ...]:
    return tuple(i - (i > gone) for i in blocks if i != gone)


def with_fitting_cuts(case: Case) -> Case:
    """Returns a case whose cuts fit the number of its layers and stages."""
    n = models.n_layers(case.model)
    events, way = [], _fitted(case.way, n)
    has_channels = models.layer_of_channels(case.model) is not None
    if case.update.compression == "channels" and not has_channels:
        case = _with(case, update=_with(case.update, compression=""))
        kept = [event for event in case.life.events if event.name != "shrink"]
        case = _with(case, life=_with(case.life, events=tuple(kept)))
    first = way
    for event in case.life.events:
        if event.way is not None:
            way = _fitted(event.way, n)
            event = _with(event, way=way)
        elif event.name == "move":
            event = _with(event, cuts=_cuts(event.cuts, n, len(way.stage_ranks)))
        events.append(event)
    return _with(case, way=first, life=_with(case.life, events=tuple(events)))


def _fitted(way: Way, n_layers: int) -> Way:
    if len(way.stage_ranks) > n_layers:
        n = way.n_pipeline
        way = _with(way, schedule="1f1b", stage_ranks=Placement.LOOP.ranks(n, n))
    n_stages = len(way.stage_ranks)
    options = dict(way.options)
    if len(options.get("stage_groups", ())) > n_stages:
        options["stage_groups"] = options["stage_groups"][:n_stages]
    if isinstance(options.get("recompute"), tuple):
        start, end = options["recompute"][0]
        start = min(start, n_layers - 1)
        options["recompute"] = ((start, max(start + 1, min(end, n_layers))),)
    cuts = _cuts(way.cuts, n_layers, n_stages)
    return _with(way, cuts=cuts, options=tuple(sorted(options.items())))


def _cuts(cuts: tuple[int, ...], n_layers: int, n_stages: int) -> tuple[int, ...]:
    inner = sorted({cut for cut in cuts if 0 < cut < n_layers})[: n_stages - 1]
    free = [cut for cut in range(1, n_layers) if cut not in inner]
    inner += free[: n_stages - 1 - len(inner)]
    return (0, *sorted(inner), n_layers)
