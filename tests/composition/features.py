"""The features of a case, in words of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from divisible.schedules.catalogue import CATALOGUE
from tests.composition.blocks import BLOCKS, auxiliaries
from tests.composition.cases import Case, Way

#: Features of models, of ways to run them, and of lives, in the order of the table.
OF_MODELS = (
    "Linear",
    "convolutions",
    "grouped convolutions",
    "deconvolutions",
    "pointwise functions",
    "relu and max pooling",
    "average pooling",
    "batch normalization",
    "layer normalization",
    "group normalization",
    "dropout",
    "random layers",
    "residual blocks",
    "own links",
    "embeddings",
    "recurrent layers",
    "carry_state",
    "skips",
    "skips with several users",
    "dictionaries between layers",
    "register_split",
    "auxiliary losses",
    "shapes that depend on the data",
    "ties",
    "transposed ties",
    "tuples between layers",
    "several inputs",
    "several outputs",
    "layers that some microbatches use",
    "gradients of some microbatches",
    "reported values",
    "frozen parameters",
    "ignored labels",
    "counted losses",
    "losses of outputs",
    "deferred_init",
    "streamed layers",
    "float16",
)
OF_UPDATES = (
    "SGD",
    "MomentumSGD",
    "Adam",
    "GradientClipping",
    "WeightDecay",
    "Lasso",
    "GradientNoise",
    "GradientHardClipping",
    "rates of layers",
    "loss_scale",
    "dynamic loss scale",
    "Prune",
    "Prune of channels",
    "Quantize",
)
OF_WAYS = (
    *CATALOGUE,
    "schedule='auto'",
    "list_schedule",
    "several microbatches",
    "recompute",
    "recomputed layers",
    "hold_in",
    "hold_dtype",
    "fuse",
    "weight_groups",
    "groups of stages",
    "overlap_minibatches",
    "message_dtype",
    "deferred_batch_norm=False",
    "transport='rma'",
    "transport='chainermn'",
    "kernels",
    "products in bfloat16",
    "replicas",
    "shares of replicas",
    "exchange in 16 bits",
    "exchange in 8 or 4 bits",
    "error_feedback",
    "double_buffering",
)
OF_LIVES = (
    "evaluate",
    "predict",
    "a smaller minibatch",
    "new shapes",
    "reset_states",
    "a snapshot",
    "a snapshot on other stages",
    "a snapshot on other replicas",
    "a move of layers",
    "a refused call",
    "shrink",
    "accumulated gradients",
)
FEATURES = (*OF_MODELS, *OF_UPDATES, *OF_WAYS, *OF_LIVES)

_LOSSES = {
    "ignored labels": "ignored labels",
    "counted": "counted losses",
    "outputs alone": "losses of outputs",
}


def features(case: Case) -> list[str]:
    """Returns the features of a case, each once, in the order of the table."""
    found = {*_of_model(case), *_of_update(case), *_of_life(case)}
    for way in case.ways:
        found.update(_of_way(case, way))
    assert found <= {*FEATURES}, found - {*FEATURES}
    return [each for each in FEATURES if each in found]


def _of_model(case: Case) -> Iterator[str]:
    model = case.model
    for name in model.blocks:
        if name in BLOCKS:
            yield BLOCKS[name].feature
        elif name.startswith("pop"):
            yield "skips"
            users = [
                other for other in model.blocks if name.split()[:2] == other.split()[:2]
            ]
            if len(users) > 1:
                yield "skips with several users"
    if auxiliaries(model.blocks):
        yield "auxiliary losses"
    if model.domain == "words":
        yield "embeddings"
    elif model.domain == "images":
        yield "convolutions"
    for _, _, is_transposed in model.ties:
        yield "transposed ties" if is_transposed else "ties"
    if model.n_inputs > 1:
        yield "several inputs"
    if model.n_outputs > 1:
        yield "several outputs"
    if model.frozen:
        yield "frozen parameters"
    if model.loss in _LOSSES:
        yield _LOSSES[model.loss]
    if model.is_deferred:
        yield "deferred_init"
    if model.dtype == "float16":
        yield "float16"


def _of_update(case: Case) -> Iterator[str]:
    update = case.update
    yield update.rule
    yield from update.hooks
    if update.rates:
        yield "rates of layers"
    if update.loss_scale:
        yield "loss_scale" if update.loss_scale > 0 else "dynamic loss scale"
    if update.compression == "channels":
        yield "Prune of channels"
    elif update.compression:
        yield update.compression.capitalize()


def _of_way(case: Case, way: Way) -> Iterator[str]:
    options = dict(way.options)
    if way.schedule == "auto":
        yield "schedule='auto'"
    else:
        yield "list_schedule" if way.schedule.startswith("list") else way.schedule
    if way.n_microbatches > 1:
        yield "several microbatches"
    if "recompute" in options:
        is_named = isinstance(options["recompute"], str)
        yield "recompute" if is_named else "recomputed layers"
    for name in ("hold_in", "hold_dtype", "weight_groups", "message_dtype"):
        if name in options:
            yield name
    if "fuse" not in options:
        yield "fuse"
    if "stage_groups" in options:
        yield "groups of stages"
    if options.get("overlap_minibatches") is True:
        yield "overlap_minibatches"
    if options.get("deferred_batch_norm") is False:
        yield "deferred_batch_norm=False"
    if "transport" in options:
        yield f"transport={options['transport']!r}"
    if way.has_kernels:
        yield "kernels"
    if way.products:
        yield "products in bfloat16"
    if way.n_replicas > 1:
        yield "replicas"
        if len({*way.shares}) > 1:
            yield "shares of replicas"
        exchange = dict(way.exchange)
        bits = {"fp32": 32, "fp16": 16, "bf16": 16}.get(exchange["exchange_dtype"], 8)
        if bits < 32:
            yield "exchange in 16 bits" if bits == 16 else "exchange in 8 or 4 bits"
        if exchange.get("error_feedback"):
            yield "error_feedback"
        if way.is_double_buffered:
            yield "double_buffering"


def _of_life(case: Case) -> Iterator[str]:
    life, way = case.life, case.way
    if life.accumulates:
        yield "accumulated gradients"
    if len({*life.sizes}) > 1:
        yield "a smaller minibatch"
    if len({*life.lengths}) > 1:
        yield "new shapes"
    for event in life.events:
        if event.way is not None:
            yield "a snapshot"
            if event.way.cuts != way.cuts or event.way.n_pipeline != way.n_pipeline:
                yield "a snapshot on other stages"
            if event.way.n_replicas != way.n_replicas:
                yield "a snapshot on other replicas"
            way = event.way
    names = {
        "evaluate": "evaluate",
        "predict": "predict",
        "reset": "reset_states",
        "move": "a move of layers",
        "caught": "a refused call",
        "shrink": "shrink",
    }
    for event in life.events:
        if event.name in names:
            yield names[event.name]
