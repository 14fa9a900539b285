"""``StandardUpdater`` and ``ParallelUpdater``: one updater over a pipeline."""

from __future__ import annotations

import ast

from pipeline.porting.edits import insertion, replacement
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.own_updaters import own_updater, parameters
from pipeline.porting.parts import Parts, updater_classes
from pipeline.porting.script import Script, argument

NOUN = "updater"
FINDS = "``StandardUpdater``, ``ParallelUpdater``, classes derived from them"
WRITES = "``PipelineUpdater(iterator, optimizer, pipe)``, and the pipeline before it"
PAGE = "howto/trainer"

_REFUSED = {
    "loss_func": (
        "loss_func= is another function than the model's call: pass it to the Pipeline"
        " as lossfun=, a function of outputs and targets",
        "howto/other_losses",
    ),
    "loss_scale": (
        "loss_scale= belongs to MixedPrecision around the optimizer",
        "howto/mixed_precision",
    ),
    "models": (
        "models= gives each device a model of its own: give devices= alone",
        "howto/trainer",
    ),
}
_SPLITS = (
    "each process has a share of the data set here: make one iterator over all of it,"
    " with the batch size of all devices, and a StandardUpdater"
)

_SECOND = (
    "this updater has another iterator or optimizer, or is in another function, than"
    " the first one: port a script for each"
)
_SCALED = (
    "one of several updaters adds up the gradients of its devices: leave one updater in"
    " the script"
)


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds updaters, and where the pipeline is made."""
    findings = _several(script, parts)
    for call in parts.updaters:
        findings += _updater(script, parts, call)
    return findings


def _several(script: Script, parts: Parts) -> list[Finding]:
    """Returns the obstacles if one pipeline cannot serve all updaters."""
    first, *others = parts.updaters or [None]
    findings = []
    for other in others:
        is_same = script.scope(other) is parts.scope and all(
            _source(script, first, *each) == _source(script, other, *each)
            for each in (("iterator", 0), ("optimizer", 1))
        )
        if not is_same:
            findings.append(obstacle(other.lineno, _SECOND, PAGE))
        devices = [argument(call, "devices") for call in (first, other)]
        if any(each is not None and _number(script, each) != "1" for each in devices):
            findings.append(obstacle(other.lineno, _SCALED, PAGE))
    return findings


def _source(script: Script, call: ast.Call, name: str, position: int) -> str:
    node = argument(call, name, position)
    return "" if node is None else script.source(node)


def _number(script: Script, devices: ast.expr) -> str:
    """Returns the source of the number of devices."""
    if isinstance(devices, ast.Dict):
        return str(len(devices.keys))
    return f"len({script.source(devices)})"


def _updater(script: Script, parts: Parts, call: ast.Call) -> list[Finding]:
    name = script.imported(call.func).rpartition(".")[2]
    if name == "MultiprocessParallelUpdater":
        return [obstacle(call.lineno, _SPLITS, PAGE)]
    findings = []
    is_parallel = name == "ParallelUpdater"
    names = (
        ["converter", "models", "devices"] if is_parallel else ["converter", "device"]
    )
    own = {each.name: each for each in updater_classes(script)}
    is_own = isinstance(call.func, ast.Name) and call.func.id in own
    if is_own:
        names = parameters(own[call.func.id])[2:] or names
    given = {
        key: node
        for position, key in enumerate(names, 2)
        if (node := argument(call, key, position)) is not None
    }
    for keyword in call.keywords:
        if keyword.arg not in (None, "iterator", "optimizer"):
            given[keyword.arg] = keyword.value
        if keyword.arg is None:
            text = "the updater is called with **: write its arguments one by one"
            findings.append(obstacle(call.lineno, text, PAGE))
    for key in given.keys() & _REFUSED.keys():
        findings.append(obstacle(call.lineno, *_REFUSED[key]))
    more, converter = [], given.get("converter")
    converter = converter and script.source(converter)
    if is_own:
        found, converter = own_updater(script, parts, own[call.func.id], converter)
        findings += found
        given = {key: given[key] for key in given if key in _KEPT}
    if converter:
        more.append(f"converter={converter}")
    if is_parallel and "devices" in given:
        findings.append(_moved(script, parts, call, given["devices"]))
    for key in ("device", "input_device", "auto_new_epoch"):
        if key in given:
            more.append(f"{key}={script.source(given[key])}")
    parts.imports |= {"pipeline.Pipeline", "pipeline.PipelineUpdater"}
    device = given.get("device", given.get("input_device"))
    _give_example(script, parts, converter, device)
    words = [parts.iterator, parts.optimizer, parts.pipe, *more]
    edit = replacement(script, call, f"PipelineUpdater({', '.join(words)})")
    text = "each minibatch goes through the stages of all ranks"
    return [*findings, Finding(call.lineno, text, (edit,), PAGE)]


_KEPT = ("converter", "device", "input_device", "auto_new_epoch")


def _moved(script: Script, parts: Parts, call: ast.Call, devices: ast.expr) -> Finding:
    """Moves the model to the main device, and keeps the size of its updates."""
    source = script.source(devices)
    main, n = f"{source}['main']", _number(script, devices)
    if isinstance(devices, ast.Dict):
        keys = [getattr(key, "value", None) for key in devices.keys]
        node = dict(zip(keys, devices.values)).get("main")
        main = script.source(node) if node is not None else main
    parts.before.append(f"{parts.model}.to_device({main})")
    text = (
        f"the updater added up the gradients of {n} parts of a minibatch; a pipeline"
        f" has the mean of all samples"
    )
    name, has_hooks = _optimizer_class(script, parts), bool(script.methods("add_hook"))
    is_plain = not has_hooks and not _sets_rate(script, parts)
    if name in _ANY_SCALE:
        text += ", and this optimizer makes the same updates of both"
    elif name in _LINEAR and is_plain:
        parts.after.append(f"{parts.optimizer}.lr *= {n}")
        text += f", so the learning rate is {n} times as high"
    else:
        text += f". For the same updates, multiply all learning rates by {n}"
    if has_hooks:
        text += f". Divide the rates and thresholds of hooks by {n}"
    return Finding(call.lineno, text, page="explanation/numerics")


#: Optimizers whose updates are as large for gradients of any scale, and proportional.
_ANY_SCALE = ("Adam", "AdaGrad", "AdaDelta", "RMSprop", "SMORMS3")
_LINEAR = ("SGD", "MomentumSGD", "NesterovAG", "CorrectedMomentumSGD")

# Extensions that set a hyperparameter, and arguments by which others do.
_SETTERS = ("LinearShift", "WarmupShift")
_SHIFTS = (
    "ExponentialShift",
    "InverseShift",
    "MultistepShift",
    "PolynomialShift",
    "StepShift",
)


def _sets_rate(script: Script, parts: Parts) -> bool:
    """Returns whether a learning rate is set behind the updater."""
    rate = f"{parts.optimizer}.lr"
    shifts = script.calls(*_SHIFTS)
    return (
        bool(script.calls(*_SETTERS))
        or any(argument(each, "init") or argument(each, "target") for each in shifts)
        or any(
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and script.source(node) == rate
            and parts.is_after(node)
            for node in ast.walk(parts.scope)
        )
    )


def _optimizer_class(script: Script, parts: Parts) -> str:
    for assign in script.assigned(parts.optimizer, parts.scope):
        for node in ast.walk(assign.value):
            is_call = isinstance(node, ast.Call)
            if is_call and script.is_chainers(node.func, *_ANY_SCALE, *_LINEAR):
                return script.imported(node.func).rpartition(".")[2]
    return ""


def _give_example(
    script: Script, parts: Parts, converter: str | None, device: ast.expr | None
) -> None:
    """Makes a small minibatch from the data set of the iterator."""
    if parts.example:
        return
    iterator = parts.iterator
    if not iterator.replace(".", "").isidentifier():
        iterator = parts.iterator = script.unused("train_iter")
        first = parts.updaters[0].args[0] if parts.updaters[0].args else None
        node = first or argument(parts.updaters[0], "iterator")
        parts.before.insert(0, f"{iterator} = {script.source(node)}")
    if converter is None:
        converter = "concat_examples"
        parts.imports.add("chainer.dataset.concat_examples")
    is_moved = any(script.mentions(name) for name in ("to_gpu", "to_device"))
    is_moved = is_moved or any("to_device" in line for line in parts.before)
    words = [f"{iterator}.dataset[:2]"]
    if is_moved:
        words.append(f"{parts.model}.device")
    elif device is not None and converter != "concat_examples":
        words.append(script.source(device))
    elif converter != "concat_examples":
        words.append("None")
    parts.example = f"{converter}({', '.join(words)})[:-1]"


def creation(script: Script, parts: Parts) -> Finding:
    """Returns the finding that makes the pipeline before the place of its first use."""
    parts.imports |= {"divisible.from_chain", "pipeline.Pipeline"}
    conversion = ", ".join([parts.chain, parts.example, *parts.conversion])
    words = [parts.layers, parts.comm, "n_microbatches=4", *parts.arguments]
    if any(word.startswith("n_microbatches=") for word in parts.arguments):
        words.remove("n_microbatches=4")
    made = [
        f"{parts.layers} = from_chain({conversion})",
        f"{parts.pipe} = Pipeline({', '.join(words)})",
        f"{parts.optimizer} = {parts.pipe}.setup({parts.optimizer})",
        *parts.after,
    ]
    if parts.late is None:
        places = [(parts.place, [*parts.before, *made])]
    else:
        first = [f"if {parts.pipe} is None:", *(f"    {line}" for line in made)]
        places = [
            (parts.place, [*parts.before, f"{parts.pipe} = None"]),
            (parts.late, first),
        ]
    edits = tuple(
        insertion(script, place, "\n".join(lines) + "\n") for place, lines in places
    )
    text = (
        "the chain becomes a list of layers, of which each rank keeps its stage; the"
        " optimizer keeps its hooks"
    )
    return Finding(parts.place.lineno, text, edits, "howto/take_a_chain_apart")
