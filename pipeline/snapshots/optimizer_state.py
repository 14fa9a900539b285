"""The state of optimizers, with what Chainer's own snapshots lose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from divisible.optimizer_hooks import named_hooks
from divisible.optimizer_wrapper import each_within, innermost
from pipeline.snapshots import state_shapes
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.dry_run import dry_run
from pipeline.snapshots.serializers import (
    NO_NAMES,
    RuleReader,
    StateReader,
    StateWriter,
    read,
)


def optimizer_arrays(
    optimizer: Any, names: Mapping[str, str] = NO_NAMES
) -> dict[str, np.ndarray]:
    """Returns the state of an optimizer, of its update rules and of its hooks.

    Besides what Chainer saves, that is their classes, the hyperparameters, numbers that
    update rules keep as attributes, a dynamic loss scale, the float32 copies of
    ``use_fp32_update``, and what hooks with a method ``serialize`` write.

    Args:
        optimizer: The optimizer.
        names: By the path of a parameter in the optimizer's target another one to
            write its state under.
    """
    writer = StateWriter(names=names)
    optimizer.serialize(writer)
    for serializer, hook in _hooks(optimizer, writer):
        hook.serialize(serializer)
    writer("settings", json.dumps(_settings(optimizer)))
    for path, param in _updated(optimizer):
        rule, below = param.update_rule, writer[path]
        below("has_state", rule.state is not None)
        own = {
            "class": _class(rule),
            "hyperparam": _numbers(rule.hyperparam),
            "rule": _numbers(rule),
        }
        below("settings", json.dumps(own))
        if rule._fp32_param is not None and rule._fp32_param.array is not None:
            below("fp32_param", rule._fp32_param.array)
    return writer.target


def load_optimizer(
    optimizer: Any, arrays: Arrays, names: Mapping[str, str] = NO_NAMES
) -> None:
    """Loads what :func:`optimizer_arrays` returned, for the same layers or others.

    What differs is noted in the ledger of the arrays. An optimizer of another class
    begins anew, with the hyperparameters that it has. A dry run leaves it as it is.
    """
    if arrays.is_dry_run:
        with dry_run(arrays, _readers(optimizer, names)):
            _load(optimizer, arrays, names)
    else:
        _load(optimizer, arrays, names)


def load_replicas(
    optimizer: Any, replicas: Sequence[Arrays], names: Mapping[str, str] = NO_NAMES
) -> None:
    """Loads what each replica had of its own, where there are more or fewer now.

    Args:
        optimizer: It may have a method ``load_replicas``; otherwise nothing is done.
        replicas: Of each replica that there was what :func:`load_optimizer` takes.
        names: Likewise.
    """
    if not hasattr(optimizer, "load_replicas"):
        return
    readers = [RuleReader(arrays, names=names).noting() for arrays in replicas]
    optimizer.load_replicas(readers)


def _readers(optimizer: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yields whose attributes change when an optimizer is loaded, with their keys."""
    writer = StateWriter(names=names)
    for each in each_within(optimizer):
        yield from [("", each), ("", each.hyperparam)]
        if hasattr(type(each), "loaded_parts"):
            for part in each.loaded_parts():
                yield "", part
        for below, hook in _hooks(each, writer):
            yield below.path, hook
        for path, param in _updated(each):
            rule, above = param.update_rule, writer[path].path
            yield from [(above, rule), (above, rule.hyperparam)]


def _load(optimizer: Any, arrays: Arrays, names: Mapping[str, str]) -> None:
    for path, param in _updated(optimizer):
        # What is there must not remain where nothing was saved, nor lend its dtype.
        param.update_rule._fp32_param = None
        name = names.get(path, path).strip("/")
        if not _reads_into_files(param, arrays, name):
            param.update_rule._state = None
    optimizer.serialize(RuleReader(arrays, names=names).noting())
    for serializer, hook in _hooks(optimizer, StateReader(arrays, names=names)):
        read(hook.serialize, serializer)
    is_alike = True
    if "settings" in arrays:
        settings = arrays.json("settings")
        with arrays.blamed("settings"):
            is_alike = _is_alike(optimizer, settings, arrays)
            if is_alike:
                _set_numbers(optimizer.hyperparam, settings["hyperparam"])
            _load_loss_scale(optimizer, settings, arrays)
    else:
        arrays.miss("settings")
    for path, param in _updated(optimizer):
        name = names.get(path, path).strip("/")
        if f"{name}/settings" in arrays:
            _load_rule(param, arrays, name, is_alike)
            state_shapes.note_rule(param, arrays, name)
        else:
            arrays.miss(f"{name}/settings")


def _reads_into_files(param: chainer.Parameter, arrays: Arrays, name: str) -> bool:
    """Whether the state of a rule is read into files, which it has after that."""
    if not getattr(param, "is_streamed", False):
        return False
    if f"{name}/has_state" not in arrays or not arrays[f"{name}/has_state"]:
        return False
    param.begin_state()
    return all(f"{name}/{key}" in arrays for key in param.update_rule.state)


def _load_rule(
    param: chainer.Parameter, arrays: Arrays, name: str, is_alike: bool
) -> None:
    """Loads what Chainer does not save of an update rule."""
    rule, own = param.update_rule, arrays.json(f"{name}/settings")
    with arrays.blamed(f"{name}/settings"):
        if is_alike and _is_alike(rule, own, arrays):
            _set_numbers(rule.hyperparam, own["hyperparam"])
            _set_numbers(rule, own["rule"])
        else:
            # Under the same name there may be another thing, as v of Adam.
            rule._state, rule.t = None, 0
    if not rule._use_fp32_update or param.array is None or param.dtype != np.float16:
        return
    key = f"{name}/fp32_param"
    if key in arrays:
        copy = chainer.Parameter(np.empty(param.shape, np.float32))
        copy.array[...] = StateReader(arrays).noting()(key, copy.array)
        copy.to_device(param.device)
        rule._fp32_param = copy
    elif rule.t > 0:
        arrays.miss(key)


def _is_alike(here: Any, settings: Mapping[str, Any], arrays: Arrays) -> bool:
    """Notes an optimizer, or an update rule, of another class than was saved."""
    # Snapshots of earlier versions do not say.
    saved, kind = settings.get("class", _class(here)), _class(here)
    if saved != kind:
        arrays.ledger.kinds.add((saved, kind))
    return saved == kind


def _class(thing: Any) -> str:
    """Returns the class of an optimizer, within others around it, or of a rule."""
    return type(innermost(thing)).__name__


def _updated(optimizer: Any) -> Iterator[tuple[str, chainer.Parameter]]:
    for path, param in optimizer.target.namedparams():
        if param.update_rule is not None:
            yield path, param


def _hooks(optimizer: Any, serializer: Any) -> Iterator[tuple[Any, Any]]:
    """Yields where to save the hooks that have a state, and the hooks.

    A hook of an optimizer may have a method ``state_of(path, param)``, which returns
    what it keeps for a parameter, or ``None``: that is saved beside the update rule.
    """
    owners = [(optimizer, serializer)]
    for path, param in _updated(optimizer):
        owners.append((param.update_rule, serializer[path]))
    for owner, below in owners:
        for name, hook in named_hooks(owner):
            if hasattr(hook, "serialize"):
                yield below["hooks"][name], hook
    for name, hook in named_hooks(optimizer):
        if hasattr(hook, "state_of"):
            for path, param in _updated(optimizer):
                kept = hook.state_of(path, param)
                if kept is not None:
                    yield serializer[path]["hooks"][name], kept


def _settings(optimizer: Any) -> dict[str, Any]:
    numbers = _numbers(optimizer.hyperparam)
    settings = {"class": _class(optimizer), "hyperparam": numbers}
    if optimizer._loss_scaling_is_dynamic:
        settings["loss_scale"] = float(optimizer._loss_scale)
        settings["loss_scaling_isnan_ever"] = optimizer._loss_scaling_isnan_ever
    return settings


def _load_loss_scale(
    optimizer: Any, settings: Mapping[str, Any], arrays: Arrays
) -> None:
    """Loads the loss scale of ``optimizer.loss_scaling()``."""
    if not optimizer._loss_scaling_is_dynamic:
        if "loss_scale" in settings:
            arrays.leave("settings/loss_scale")
    elif "loss_scale" not in settings:
        arrays.miss("settings/loss_scale")
    else:
        optimizer._loss_scale = float(settings["loss_scale"])
        optimizer._loss_scaling_isnan_ever = settings["loss_scaling_isnan_ever"]


def _numbers(holder: Any) -> dict[str, Any]:
    """Returns the numbers among an object's public attributes, for JSON.

    Hyperparameters that are set there and not in their parent; and what update rules
    keep beside their state, as MSVAG does, which Chainer's own snapshots lose.
    """
    found = {}
    for name, value in vars(holder).items():
        if name.startswith("_") or not isinstance(value, (int, float, np.generic)):
            continue
        found[name] = value
        if isinstance(value, np.generic):
            # It widens a float32 array, which a number of Python's does not.
            found[name] = {"dtype": value.dtype.name, "value": value.item()}
    return found


def _set_numbers(holder: Any, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if isinstance(value, dict):
            value = np.dtype(value["dtype"]).type(value["value"])
        if name.startswith("_") or not isinstance(value, (int, float, np.generic)):
            raise ValueError(f"{name!r} is {value!r}, and no number")
        setattr(holder, name, value)
