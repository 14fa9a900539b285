"""The state of optimizers, with what Chainer's own snapshots lose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import chainer
import numpy as np

from pipeline.snapshots.serializers import (
    NO_NAMES,
    RuleReader,
    StateReader,
    StateWriter,
)


def optimizer_arrays(
    optimizer: Any, names: Mapping[str, str] = NO_NAMES
) -> dict[str, np.ndarray]:
    """Returns the state of an optimizer, of its update rules and of its hooks.

    Besides what Chainer saves, that is the hyperparameters, numbers that update rules
    keep as attributes, a dynamic loss scale, the float32 copies of ``use_fp32_update``,
    and what hooks with a method ``serialize`` write.

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
        own = {"hyperparam": _numbers(rule.hyperparam), "rule": _numbers(rule)}
        below("settings", json.dumps(own))
        if rule._fp32_param is not None and rule._fp32_param.array is not None:
            below("fp32_param", rule._fp32_param.array)
    return writer.target


def load_optimizer(
    optimizer: Any,
    arrays: Mapping[str, np.ndarray],
    names: Mapping[str, str] = NO_NAMES,
) -> None:
    """Loads what :func:`optimizer_arrays` returned, for the same layers or others."""
    for _, param in _updated(optimizer):
        # What is there must not remain where nothing was saved, nor lend its dtype.
        param.update_rule._state = None
    optimizer.serialize(RuleReader(arrays, names=names))
    for serializer, hook in _hooks(optimizer, StateReader(arrays, names=names)):
        hook.serialize(serializer)
    _load_settings(optimizer, _json(arrays["settings"]))
    for path, param in _updated(optimizer):
        rule, name = param.update_rule, names.get(path, path).strip("/")
        own = _json(arrays[f"{name}/settings"])
        _set_numbers(rule.hyperparam, own["hyperparam"])
        _set_numbers(rule, own["rule"])
        if f"{name}/fp32_param" in arrays:
            rule._fp32_param = chainer.Parameter(arrays[f"{name}/fp32_param"])
            rule._fp32_param.to_device(param.device)


def _updated(optimizer: Any) -> Iterator[tuple[str, chainer.Parameter]]:
    for path, param in optimizer.target.namedparams():
        if param.update_rule is not None:
            yield path, param


def _hooks(optimizer: Any, serializer: Any) -> Iterator[tuple[Any, Any]]:
    """Yields where to save the hooks that have a state, and the hooks."""
    owners = [(optimizer, serializer)]
    for path, param in _updated(optimizer):
        owners.append((param.update_rule, serializer[path]))
    for owner, below in owners:
        hooks = owner._hookable
        for named in (hooks._pre_update_hooks, hooks._post_update_hooks):
            for name, hook in named.items():
                if hasattr(hook, "serialize"):
                    yield below["hooks"][name], hook


def _settings(optimizer: Any) -> dict[str, Any]:
    settings = {"hyperparam": _numbers(optimizer.hyperparam)}
    if optimizer._loss_scaling_is_dynamic:
        settings["loss_scale"] = float(optimizer._loss_scale)
        settings["loss_scaling_isnan_ever"] = optimizer._loss_scaling_isnan_ever
    return settings


def _load_settings(optimizer: Any, settings: Mapping[str, Any]) -> None:
    _set_numbers(optimizer.hyperparam, settings["hyperparam"])
    if optimizer._loss_scaling_is_dynamic and "loss_scale" in settings:
        optimizer._loss_scale = settings["loss_scale"]
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
        setattr(holder, name, value)


def _json(array: np.ndarray) -> Any:
    return json.loads(str(array))
