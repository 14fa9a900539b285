"""Draws cases: ``draw(seed)`` is the same case for the same seed, everywhere."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chainer
from hypothesis import strategies as st

from divisible.schedules.catalogue import CATALOGUE, Placement
from tests.composition import models, torch_blocks
from tests.composition.blocks import BLOCKS, auxiliaries, code_of, layers_of
from tests.composition.cases import Case, Event, Life, Model, Update, Way
from tests.composition.choosing import Choices, Drawn, Seeded, some
from tests.composition.losses import OF_AUXILIARIES, OF_ONE_OUTPUT
from tests.composition.updating import HOOKS, RULES

MESSAGE_DTYPES = ("fp16", "bf16", "int8", "e4m3", "e5m2", "int4")
TRANSPORTS = ("rma", "rma", "chainermn")
EXCHANGE_DTYPES = ("fp32", "fp16", "bf16", "int8", "e4m3", "e5m2", "int4")
AUTO, TWO_VERSIONS = "auto", "pipedream_2bw"
#: Blocks that some microbatches treat otherwise: the first group of a stage decides
#: which layers run once for a group.
UNGROUPED = ("sometimes", "gate", "varying")
#: Most ranks of a case.
MOST_RANKS = 4


def draw(seed: int) -> Case:
    """Returns the case of a seed."""
    return draw_from(Seeded(seed), seed)


@st.composite
def cases(draw: Any) -> Case:
    """Cases, for hypothesis."""
    return draw_from(Drawn(draw), 0)


def draw_from(choose: Choices, seed: int) -> Case:
    """Returns a case that is made of choices."""
    model = _model(choose)
    update = _update(choose, model)
    way = _way(choose, model, update)
    life = _life(choose, model, update, way)
    return torch_blocks.replaced(choose, Case(seed, model, way, update, life))


def _model(choose: Choices) -> Model:
    domain = choose.one_of(("vectors", "vectors", "images", "words"))
    dtype = choose.one_of(("float64", "float64", "float32", "float32", "float16"))
    names = _names(choose, domain, dtype)
    n_inputs = 1 + (domain == "vectors" and choose.chance(20))
    n_auxiliaries = len(auxiliaries(names))
    may_fork = domain == "vectors" and not n_auxiliaries
    n_outputs = 1 + (may_fork and choose.chance(15))
    loss = choose.one_of(OF_ONE_OUTPUT)
    if n_auxiliaries:
        loss = OF_AUXILIARIES[n_auxiliaries]
    if n_outputs == 2:
        loss = "two outputs"
    is_deferred = "streamed" in names or choose.chance(25)
    ties = _ties(choose, names) if choose.chance(50) else ()
    learning = [i for i, name in enumerate(names) if _has_parameters(name)]
    frozen = tuple(some(choose, learning, 2)) if choose.chance(25) else ()
    if ties:
        # Copies are frozen together.
        tied = {i for one, other, _ in ties for i in (one, other)}
        frozen = tuple(i for i in frozen if i not in tied)
    return Model(
        domain, names, dtype, ties, frozen, loss, n_inputs, n_outputs, is_deferred
    )


def _names(choose: Choices, domain: str, dtype: str) -> tuple[str, ...]:
    known = [
        name
        for name, block in BLOCKS.items()
        if domain in block.domains
        and (dtype == "float64" or not block.is_kinked)
        and (dtype == "float32" or name != "streamed")
        and (dtype != "float16" or name != "noise")
    ]
    # Weights that may be tied.
    known += [name for name in known if BLOCKS[name].weight] * 3
    if domain == "words":
        known += ["lstm", "gru"] * 2
    names: list[str] = []
    n_stashed = 0
    open_skips: list[str] = []
    if domain == "vectors" and choose.chance(20):
        # The second layer alone reads the channels of the first one.
        names += ["linear", "tanh", "linear"]
    for _ in range(choose.integer(2, 9)):
        names.append(choose.one_of(known))
        if choose.chance(20) and n_stashed < 3:
            skip = "abc"[n_stashed]
            n_stashed += 1
            names.append(f"stash {skip}")
            open_skips.append(skip)
        elif open_skips and choose.chance(35):
            names.append(_pop(choose, open_skips, domain))
    while open_skips:
        names.append(choose.one_of(known))
        names.append(_pop(choose, open_skips, domain))
    if choose.chance(20):
        for name in "pq"[: choose.integer(1, 2)]:
            names.insert(choose.integer(0, len(names)), f"auxiliary {name}")
    return tuple(names)


def _pop(choose: Choices, open_skips: list[str], domain: str) -> str:
    joins = ["add", "multiply"] + ["concat"] * (domain == "vectors")
    place = choose.integer(0, len(open_skips) - 1)
    # A tensor may have several users.
    skip = open_skips[place] if choose.chance(30) else open_skips.pop(place)
    return f"pop {skip} {choose.one_of(joins)}"


def _ties(choose: Choices, names: tuple[str, ...]) -> tuple[tuple[int, int, bool], ...]:
    tied = [i for i, name in enumerate(names) if name in BLOCKS and BLOCKS[name].weight]
    if len(tied) < 2:
        return ()
    first, second = sorted(tied.pop(choose.integer(0, len(tied) - 1)) for _ in range(2))
    found = [(first, second, choose.chance(50))]
    if tied and choose.chance(30):
        third = choose.one_of(tied)
        found.append((*sorted((first, third)), False))
    return tuple(found)


@functools.cache
def _has_parameters(name: str) -> bool:
    """Returns whether the first layer of a block has some."""
    if name not in BLOCKS:
        return name.endswith("concat") or name.startswith("auxiliary ")
    layer = layers_of(code_of(name, is_resident=True))[0]
    return isinstance(layer, chainer.Link) and any(True for _ in layer.params())


def _update(choose: Choices, model: Model) -> Update:
    scale = 0.0
    if model.dtype == "float16" or (model.dtype == "float32" and choose.chance(10)):
        scale = choose.one_of((64.0, 1000.0, -1.0))
    hooks = tuple(some(choose, list(HOOKS), 2)) if choose.chance(45) else ()
    learning = [i for i, name in enumerate(model.blocks) if _has_parameters(name)]
    tied = {i for one, other, _ in model.ties for i in (one, other)}
    rates = ()
    if choose.chance(15):
        rates = tuple(i for i in some(choose, learning, 2) if i not in tied)
    compression = ""
    is_possible = model.domain == "vectors" and "streamed" not in model.blocks
    has_channels = models.layer_of_channels(model) is not None
    likely = 50 if has_channels else 25
    if is_possible and model.dtype != "float64" and choose.chance(likely):
        kinds = ("prune", "quantize") + ("channels",) * (2 * has_channels)
        compression = choose.one_of(kinds)
    return Update(choose.one_of(tuple(RULES)), hooks, scale, rates, compression)


def _way(
    choose: Choices, model: Model, update: Update, before: Way | None = None
) -> Way:
    n_layers = models.n_layers(model)
    n_ranks = choose.one_of((1, 2, 2, 3, 4))
    n_replicas = 1
    carries = models.carries(model)
    if n_ranks in (2, 4) and choose.chance(60 if carries else 40):
        n_replicas = choose.one_of([n for n in (2, 4) if n_ranks % n == 0])
    # States go on with their samples: as many replicas, or others with equal parts.
    if carries and before is not None:
        n_replicas = before.n_replicas if choose.chance(40) else choose.one_of((2, 4))
        n_ranks = n_replicas * choose.integer(1, MOST_RANKS // n_replicas)
    n_pipeline = n_ranks // n_replicas
    may_be_late = n_replicas == 1 and _suits_two_versions(model, update)
    schedule, stage_ranks = _schedule(choose, n_pipeline, n_layers, may_be_late)
    n_stages = len(stage_ranks)
    cuts = _cuts(choose, n_layers, n_stages)
    n_microbatches = choose.integer(1, 5)
    shares: tuple[int, ...] = ()
    if n_replicas > 1 and choose.chance(10 if carries else 40):
        shares = tuple(choose.integer(1, 3) for _ in range(n_replicas))
    if carries and before is not None and n_replicas == before.n_replicas:
        shares = before.shares
    exchange: dict[str, object] = {}
    # A weight that is pruned or not by a rounding error is no small difference.
    may_round = update.compression not in ("prune", "channels")
    if n_replicas > 1:
        dtype = choose.one_of(EXCHANGE_DTYPES) if may_round else "fp32"
        exchange = {"exchange_dtype": dtype, "local_size": 1, "minimum": 0}
        if choose.chance(20):
            exchange["overlap"] = False
        if dtype != "fp32" and choose.chance(30):
            exchange["error_feedback"] = True
        if choose.chance(12):
            exchange["double_buffering"] = True
    may_overlap = n_replicas == 1 and not _needs_whole_model(model)
    options = _options(choose, model, schedule, n_stages, n_layers, may_overlap)
    if not may_round:
        options.pop("hold_dtype", None)
        options.pop("message_dtype", None)
    has_kernels = choose.chance(60)
    may_narrow = has_kernels and may_round and model.dtype == "float32"
    is_narrow = may_narrow and choose.chance(20)
    return Way(
        n_ranks,
        n_replicas,
        shares,
        schedule,
        stage_ranks,
        cuts,
        n_microbatches,
        tuple(sorted(options.items())),
        tuple(sorted(exchange.items())),
        has_kernels,
        "bfloat16" if is_narrow else "",
    )


def _suits_two_versions(model: Model, update: Update) -> bool:
    """Returns whether a schedule of two weight versions is not refused."""
    return _has_plain_updates(model) and not (update.loss_scale or update.compression)


def _has_plain_updates(model: Model) -> bool:
    """Returns whether a gradient may wait for the next step."""
    known = model.loss in ("cross entropy", "ignored labels")
    return known and not _needs_whole_model(model)


def _needs_whole_model(model: Model) -> bool:
    """Returns whether a stage must wait for others before it updates."""
    return bool(model.ties or "streamed" in model.blocks or models.carries(model))


def _schedule(
    choose: Choices, n_pipeline: int, n_layers: int, may_be_late: bool
) -> tuple[str, tuple[int, ...]]:
    names = [name for name, each in CATALOGUE.items() if each.weight_versions == 1]
    if may_be_late or choose.chance(5):
        names += [TWO_VERSIONS] * (4 if may_be_late else 1)
    if choose.chance(20):
        per_rank = choose.integer(1, 2)
        if per_rank * n_pipeline > n_layers:
            per_rank = 1
        placement = choose.one_of(tuple(Placement)) if per_rank == 2 else Placement.LOOP
        if placement is Placement.LINE:
            placement = Placement.LOOP
        ranks = placement.ranks(n_pipeline, per_rank * n_pipeline)
        return choose.one_of((f"list {choose.integer(0, 999)}", AUTO)), ranks
    name = choose.one_of(names)
    if CATALOGUE[name].stages_per_rank * n_pipeline > n_layers:
        name = "1f1b"
    entry = CATALOGUE[name]
    n_stages = entry.stages_per_rank * n_pipeline
    return name, entry.placement.ranks(n_pipeline, n_stages)


def _cuts(choose: Choices, n_layers: int, n_stages: int) -> tuple[int, ...]:
    inner = list(range(1, n_layers))
    chosen = [inner.pop(choose.integer(0, len(inner) - 1)) for _ in range(n_stages - 1)]
    return (0, *sorted(chosen), n_layers)


def _options(
    choose: Choices,
    model: Model,
    schedule: str,
    n_stages: int,
    n_layers: int,
    may_overlap: bool,
) -> dict[str, object]:
    options: dict[str, object] = {}
    if choose.chance(30):
        options["recompute"] = choose.one_of(("except_last", "always", "layers"))
    if options.get("recompute") == "layers":
        start = choose.integer(0, n_layers - 1)
        options["recompute"] = ((start, choose.integer(start + 1, n_layers)),)
    if choose.chance(15):
        options["hold_in"] = "disk"
    if choose.chance(15):
        options["hold_dtype"] = "bfloat16"
    if choose.chance(70):
        options["fuse"] = "none"
    if choose.chance(20):
        options["weight_groups"] = choose.integer(2, 4)
    # Whether such a layer runs once for a group is found out in the first group only.
    is_grouped = schedule not in (AUTO, TWO_VERSIONS)
    if models.carries(model) and choose.chance(90):
        is_grouped = False
    may_group = is_grouped and not {*UNGROUPED} & {*model.blocks}
    if may_group and choose.chance(10):
        sizes = tuple(choose.integer(1, 3) for _ in range(n_stages))
        options["stage_groups"] = sizes
    if choose.chance(25):
        # True is refused with what an update has to wait for.
        suits = may_overlap or choose.chance(20)
        options["overlap_minibatches"] = choose.one_of((False, True)) and suits
    if model.dtype != "float64" and choose.chance(30):
        pair = choose.one_of(MESSAGE_DTYPES), choose.one_of(MESSAGE_DTYPES)
        options["message_dtype"] = pair if choose.chance(60) else pair[0]
    if "batch normalization" in model.blocks and choose.chance(15):
        options["deferred_batch_norm"] = False
    if choose.chance(15):
        options["transport"] = choose.one_of(TRANSPORTS)
    return options


def _life(choose: Choices, model: Model, update: Update, way: Way) -> Life:
    n_steps = choose.integer(3 if update.compression == "channels" else 1, 4)
    if way.schedule == AUTO:
        # The first ones are the trial.
        n_steps += 3
    usual = choose.integer(4, 9)
    sizes = [usual] * n_steps
    if models.carries(model) and choose.chance(90):
        # Replicas of a snapshot share out states in equal parts.
        sizes = [choose.one_of((4, 8))] * n_steps
    elif choose.chance(50):
        sizes[-1] = choose.integer(1, usual)
    lengths: list[int] = []
    if model.domain == "words":
        lengths = [choose.integer(2, 4)] * n_steps
        if choose.chance(40):
            lengths[-1] = choose.integer(1, 5)
    events = []
    now, n_layers, begun = way, models.n_layers(model), 0
    for _ in range(choose.integer(0, 3)):
        names = ["evaluate", "predict", "resume", "move", "caught"]
        if models.carries(model):
            names += ["reset", "resume"]
        if update.compression == "channels":
            names += ["shrink"] * 4
        name = choose.one_of(names)
        before = choose.integer(events[-1].before if events else 0, n_steps)
        event = Event(before, name)
        if name == "resume":
            now, begun = _way(choose, model, update, now), before
            event = dataclasses.replace(event, way=now)
        elif name == "move" and now.schedule == AUTO and before < begun + 4:
            # No layers move during the trial.
            event = Event(before, "evaluate")
        elif name == "move":
            cuts = _cuts(choose, n_layers, len(now.stage_ranks))
            event = dataclasses.replace(event, cuts=cuts)
        events.append(event)
    happens = {event.before for event in events}
    accumulates: tuple[int, ...] = ()
    if choose.chance(15):
        parts = [i for i in range(1, n_steps) if i not in happens]
        accumulates = tuple(some(choose, parts, 2))
    return Life(tuple(sizes), tuple(lengths), tuple(events), accumulates)
