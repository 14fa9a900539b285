"""The state of optimizers, with values that Chainer's own snapshots lack.

Arrays of an update rule must have the shape of their parameter. So a snapshot that was
changed in part, by another program, is refused before it is trained::

    optimizer/0/W/m    (10, 4)    the first moment of Adam
    model/0/W          (5, 4)     its parameter
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from divisible import Divisible
from divisible.number_lists import as_list
from divisible.optimizer_hooks import named_hooks
from divisible.optimizer_wrapper import each_within, innermost
from pipeline.between_steps import BetweenSteps
from pipeline.hooks.parameter_paths import ParameterPaths
from pipeline.hooks.resting_rules import is_at_rest
from pipeline.snapshots.arrays import Arrays, position
from pipeline.snapshots.serializers import (
    NO_NAMES,
    RuleReader,
    StateReader,
    StateWriter,
    dry_run,
    read,
)

# Sides of a parameter to try an update rule with; no rule has other arrays of these.
_SIDES = (3, 5, 7, 11, 13)


class OptimizersOfStages:
    """The optimizers of a rank, by the links that they update.

    Args:
        optimizers: One optimizer, or several as a list.
        pipeline (Pipeline): Pipeline whose stages and loss they update.

    Attributes:
        of_stages (list): Optimizers of the rank's stages.
        of_loss (list): Optimizers of the loss alone.
        loss_links (dict): Links of the loss with a state to save, by name.

    Raises:
        ValueError: If an optimizer updates neither a stage nor the loss.
    """

    def __init__(self, optimizers: Any, pipeline: BetweenSteps) -> None:
        self._stages = list(pipeline.stages.values())
        self.loss_links = {
            name: link
            for name, link in pipeline.internals.loss.links.items()
            if any(inner._params or inner._persistent for inner in link.links())
        }
        self._pipeline = pipeline
        self.of_stages, self.of_loss = [], []
        for optimizer in as_list(optimizers):
            if getattr(optimizer, "target", None) is None:
                raise ValueError(
                    f"{type(optimizer).__name__} is no optimizer with a target: call"
                    f" optimizer.setup(stage) before"
                )
            if any(covers(optimizer, stage) for stage in self._stages):
                self.of_stages.append(optimizer)
            elif any(covers(optimizer, link) for link in self.loss_links.values()):
                self.of_loss.append(optimizer)
            else:
                raise ValueError(
                    f"the optimizer of a {type(optimizer.target).__name__} updates no"
                    f" stage of rank {pipeline.rank}, nor its loss: give it as"
                    f" state={{'name': optimizer}}"
                )

    def names(self, optimizer: Any) -> dict[str, str]:
        """Returns the names under which the state of a stage's optimizer is saved.

        ::

            target                   path in the target      name
            a stage                  /7/W                    /7/W
            ChainList(stage, stage)  /0/7/W                  /7/W
            Chain of stage and loss  /criterion/W            /loss/W

        Returns:
            Names by path. The name of a layer's parameter is its path in the undivided
            model, whatever the target of the optimizer is.
        """
        params = dict(optimizer.target.namedparams())
        if [optimizer.target] == self._stages:
            return {path: path for path in params}
        paths = ParameterPaths(self._pipeline.stages, self.loss_links)
        # Outside of stages and the loss, a number in a path is not a layer's position.
        above = "" if isinstance(optimizer.target, Divisible) else "/target"
        return {path: paths.of(param) or above + path for path, param in params.items()}

    def positions(self, optimizer: Any) -> set[int]:
        """Returns the layers whose state an optimizer needs."""
        found = {position(name) for name in self.names(optimizer).values()}
        # Parameters of a loss beside the stage have no position.
        found.discard(None)
        if not found:
            for stage in self._stages:
                if covers(optimizer, stage):
                    found.update(range(*stage.layer_range))
        return found


def covers(optimizer: Any, link: chainer.Link) -> bool:
    """Returns whether an optimizer updates a link, perhaps among others."""
    target = optimizer.target
    if target is link or any(child is link for child in target.children()):
        return True
    ids = {id(param) for param in target.params()}
    return any(id(param) in ids for param in link.params())


def positions_of_layers(stage: Divisible) -> set[int]:
    """Returns the layers whose state a stage needs: its own and some it shares."""
    paths = (path for path, _ in stage.namedparams())
    return {*range(*stage.layer_range), *map(position, paths)}


def optimizer_arrays(
    optimizer: Any, names: Mapping[str, str] = NO_NAMES
) -> dict[str, np.ndarray]:
    """Returns the state of an optimizer, of its update rules and of its hooks.

    Besides what Chainer saves, the state has the classes of all three, the
    hyperparameters, and numbers in attributes of update rules. It also has a dynamic
    loss scale, the float32 copies of ``use_fp32_update``, and the state of hooks with a
    method ``serialize``.

    Args:
        optimizer: The optimizer.
        names: Names under which to write the state of parameters, by their paths in the
            optimizer's target.
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
        if is_at_rest(rule):
            own["rule"]["enabled"] = True
        below("settings", json.dumps(own))
        if rule._fp32_param is not None and rule._fp32_param.array is not None:
            below("fp32_param", rule._fp32_param.array)
    return writer.target


def load_optimizer(
    optimizer: Any, arrays: Arrays, names: Mapping[str, str] = NO_NAMES
) -> None:
    """Loads the arrays of :func:`optimizer_arrays`, for the same layers or others.

    Differences are recorded in the ledger of the arrays. An optimizer of another class
    starts without a state, with its present hyperparameters. A dry run changes nothing.
    """
    if arrays.is_dry_run:
        with dry_run(arrays, _readers(optimizer, names)):
            return _load(optimizer, arrays, names)
    _load(optimizer, arrays, names)
    for link in optimizer.target.links():
        if hasattr(link, "rules_loaded"):
            link.rules_loaded()


def load_replicas(
    optimizer: Any, replicas: Sequence[Arrays], names: Mapping[str, str] = NO_NAMES
) -> None:
    """Loads the state of all saved replicas, if their number differs now.

    Args:
        optimizer: Optimizer; only its method ``load_replicas`` is called, if it has
            one.
        replicas: Arrays of each saved replica.
        names: See :func:`optimizer_arrays`.
    """
    if hasattr(optimizer, "load_replicas"):
        readers = [RuleReader(arrays, names=names).noting() for arrays in replicas]
        optimizer.load_replicas(readers)


def _readers(optimizer: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yields the objects whose attributes a load changes, with their keys."""
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
        # Without a saved state there must be none; and no present dtype may be kept.
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
            note_rule(param, arrays, name)
        else:
            arrays.miss(f"{name}/settings")


def _reads_into_files(param: chainer.Parameter, arrays: Arrays, name: str) -> bool:
    """Returns whether the state of a rule is read into files, which then exist."""
    if not getattr(param, "is_streamed", False):
        return False
    if f"{name}/has_state" not in arrays or not arrays[f"{name}/has_state"]:
        return False
    param.begin_state()
    return all(f"{name}/{key}" in arrays for key in param.update_rule.state)


def _load_rule(
    param: chainer.Parameter, arrays: Arrays, name: str, is_alike: bool
) -> None:
    """Loads the parts of an update rule that Chainer does not save."""
    rule, own = param.update_rule, arrays.json(f"{name}/settings")
    with arrays.blamed(f"{name}/settings"):
        if is_alike and _is_alike(rule, own, arrays):
            _set_numbers(rule.hyperparam, own["hyperparam"])
            _set_numbers(rule, own["rule"])
        else:
            # Another rule may use the same name for another array, such as v of Adam.
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
    """Records a difference in the class; returns whether it is the same."""
    # Snapshots of earlier versions do not have the class.
    saved, kind = settings.get("class", _class(here)), _class(here)
    if saved != kind:
        arrays.ledger.kinds.add((saved, kind))
    return saved == kind


def _class(thing: Any) -> str:
    """Returns the class of an optimizer, within wrappers around it, or of a rule."""
    is_wrapped = hasattr(thing, "actual_optimizer")
    return type(innermost(thing) if is_wrapped else thing).__name__


def _updated(optimizer: Any) -> Iterator[tuple[str, chainer.Parameter]]:
    for path, param in optimizer.target.namedparams():
        if param.update_rule is not None:
            yield path, param


def _hooks(optimizer: Any, serializer: Any) -> Iterator[tuple[Any, Any]]:
    """Yields serializers for the hooks that have a state, and the hooks.

    A hook of an optimizer may have a method ``state_of(path, param)``, which returns
    its state for a parameter, or ``None``. This state is saved beside the update rule.
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

    These are hyperparameters that are set here and not in their parent; and numbers
    that update rules have beside their state, as MSVAG does.
    """
    found = {}
    for name, value in vars(holder).items():
        if name.startswith("_") or not isinstance(value, (int, float, np.generic)):
            continue
        found[name] = value
        if isinstance(value, np.generic):
            # NumPy's number widens a float32 array; Python's does not.
            found[name] = {"dtype": value.dtype.name, "value": value.item()}
    return found


def _set_numbers(holder: Any, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if isinstance(value, dict):
            value = np.dtype(value["dtype"]).type(value["value"])
        if name.startswith("_") or not isinstance(value, (int, float, np.generic)):
            raise ValueError(f"{name!r} is {value!r}, and no number")
        setattr(holder, name, value)


def note_rule(param: chainer.Parameter, arrays: Arrays, name: str) -> None:
    """Records arrays of an update rule that have another shape than their parameter.

    Args:
        param: Parameter whose update rule has been loaded.
        arrays: Arrays that it was loaded from.
        name: Beginning of their keys.
    """
    state = param.update_rule.state
    # A layer that gets its size in this load is checked after it.
    if not state or param.array is None:
        return
    for key in _of_elements(param.update_rule, param.ndim):
        shape = getattr(state.get(key), "shape", param.shape)
        if shape != param.shape:
            arrays.ledger.unlike.append(
                f"the optimizer's {name}/{key} was saved with shape {shape}, but its"
                f" parameter {name} is {param.shape} here"
            )


def _of_elements(rule: Any, n_dims: int) -> Iterator[str]:
    """Yields the keys of an update rule's arrays with the shape of the parameter."""
    shape = (_SIDES * (n_dims // len(_SIDES) + 1))[:n_dims]
    # Chainer tries rules in this way as well, to find out their arrays.
    probe, array = copy.copy(rule), np.zeros(shape, np.float32)
    probe._state = {}
    probe.init_state(chainer.Variable(array, grad=array))
    for key, value in probe.state.items():
        if getattr(value, "shape", None) == shape:
            yield key
