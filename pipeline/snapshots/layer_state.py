"""What belongs into a snapshot, sorted by the layer that it belongs to.

Chainer's objects write themselves into a flat dictionary of arrays. What belongs to a
layer has the layer's position in the undivided model at the beginning of its key, so
any cut can be put together from any other one::

    model/7/W   model/7/avg_mean   optimizer/7/W/v   optimizer/7/W/t    of layer 7
    optimizer/t   optimizer/loss_scale/scale                            of no layer
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import chainer
import numpy as np

from divisible import Divisible
from pipeline.snapshots.files import position
from pipeline.snapshots.serializers import (
    NO_NAMES,
    Arrays,
    RuleReader,
    StateReader,
    StateWriter,
)

# What is saved beside the objects that a user names: the global generators, and the
# pipeline's own state.
_TAKEN = ("numpy", "python", "pipeline")


def of_range(arrays: Arrays, layer_range: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns what belongs to some layers, and what belongs to none.

    Of what layers share, whoever has the first of them keeps it.
    """
    start, end = layer_range
    return {
        key: value
        for key, value in arrays.items()
        if position(key) is None or start <= position(key) < end
    }


# -- the model -----------------------------------------------------------------------


def model_arrays(stage: Divisible) -> dict[str, np.ndarray]:
    """Returns parameters and persistent values of a stage's own layers, by key."""
    writer = StateWriter()
    stage.serialize(writer)
    return of_range(writer.target, stage.layer_range)


def load_model(stage: Divisible, arrays: Arrays) -> None:
    """Loads a stage; initializes parameters that are not yet."""
    stage.serialize(StateReader(arrays))


def loss_arrays(links: Mapping[str, chainer.Link]) -> dict[str, np.ndarray]:
    """Returns parameters and persistent values of what follows the last layer."""
    writer = StateWriter()
    for name, link in links.items():
        link.serialize(writer[name])
    return writer.target


def load_loss(links: Mapping[str, chainer.Link], arrays: Arrays) -> None:
    """Loads what :func:`loss_arrays` returned."""
    for name, link in links.items():
        link.serialize(StateReader(arrays)[name])


# -- optimizers ----------------------------------------------------------------------


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
        if _float32_copy(rule) is not None:
            below("fp32_param", _float32_copy(rule))
    return writer.target


def load_optimizer(
    optimizer: Any, arrays: Arrays, names: Mapping[str, str] = NO_NAMES
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


def _float32_copy(rule: Any) -> Any:
    return None if rule._fp32_param is None else rule._fp32_param.array


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


def object_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state of objects with a method ``serialize``, under their names."""
    writer = StateWriter()
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(writer[name])
    return writer.target


def load_objects(objects: Mapping[str, Any], arrays: Arrays) -> None:
    """Loads what :func:`object_arrays` returned."""
    reader = StateReader(arrays)
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(reader[name])


def check_objects(objects: Mapping[str, Any]) -> None:
    """Refuses what has nothing to save, and names that something else has.

    Raises:
        TypeError: With the name of what has no state.
        ValueError: With the name that is taken.
    """
    for name, value in objects.items():
        if name in _TAKEN:
            raise ValueError(
                f"state[{name!r}]: the names {', '.join(_TAKEN)} are taken by what"
                f" every snapshot has; give it another one"
            )
        generators = (np.random.RandomState, np.random.Generator)
        if not hasattr(value, "serialize") and not isinstance(value, generators):
            raise TypeError(
                f"state[{name!r}] is a {type(value).__name__}, which has no method"
                f" serialize; give numbers and texts as values={{...}}"
            )
