"""What belongs into a snapshot, sorted by the layer that it belongs to.

Chainer's objects write themselves into a flat dictionary of arrays. What belongs to a
layer has the layer's position in the undivided model at the beginning of its key, so
any cut can be put together from any other one::

    model/7/W   model/7/avg_mean   optimizer/7/W/v   optimizer/7/W/t    of layer 7
    optimizer/t   optimizer/loss_scale/scale                            of no layer
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from chainer.serializers import DictionarySerializer, NpzDeserializer

from divisible import Divisible
from pipeline.snapshots.files import position

Arrays = Mapping[str, np.ndarray]

# What stands for None: an array of no elements of no type. Chainer's own way, an array
# of objects, would have to be unpickled, which runs whatever code is in the file.
_NONE = np.empty(0, "V1")

# An updater writes its optimizers and their targets under such names. They are saved
# by layer instead.
_BY_LAYER = ("optimizer:", "model:")

# What is saved beside the objects that a user names: the global generators, and the
# pipeline's own state.
_TAKEN = ("numpy", "python", "pipeline")

_NO_NAMES: Mapping[str, str] = {}


class Writer(DictionarySerializer):
    """Chainer's serializer into a dictionary, without objects to pickle.

    Args:
        target: The dictionary; a new one by default.
        path: What all keys begin with.
        names: By the name of a part another one to write it under.
    """

    def __init__(
        self,
        target: dict[str, Any] | None = None,
        path: str = "",
        names: Mapping[str, str] = _NO_NAMES,
    ) -> None:
        super().__init__(target, path)
        self._names = names

    def __getitem__(self, key: str) -> Any:
        if key.startswith(_BY_LAYER):
            return _NotWritten()
        key = self._names.get(key, key)
        return type(self)(self.target, f"{self.path}{key.strip('/')}/")

    def __call__(self, key: str, value: Any) -> Any:
        """Writes a value, and returns it."""
        full = self.path + key.lstrip("/")
        if value is None:
            self.target[full] = _NONE
            return value
        try:
            super().__call__(key, value)
            is_plain = not np.asarray(self.target[full]).dtype.hasobject
        except TypeError:
            is_plain = False
        if not is_plain:
            raise TypeError(
                f"{full} is of {type(value)}, which cannot be saved: only numbers,"
                f" texts and arrays can"
            )
        return value


class Reader(NpzDeserializer):
    """Chainer's deserializer, but exact: of other shapes or dtypes it reads nothing.

    Args:
        npz: What to read.
        path: What all keys begin with.
        names: By the name of a part the one that it was written under.
    """

    def __init__(
        self, npz: Arrays, path: str = "", names: Mapping[str, str] = _NO_NAMES
    ) -> None:
        super().__init__(npz, path)
        self._names = names

    def __getitem__(self, key: str) -> Any:
        if key.startswith(_BY_LAYER):
            return _NotRead()
        key = self._names.get(key, key)
        return type(self)(self.npz, f"{self.path}{key.strip('/')}/")

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what was saved; into an array it is copied."""
        full = self.path + key.lstrip("/")
        if full not in self.npz:
            raise KeyError(
                f"the snapshot has no {full}: it was saved with another model,"
                f" optimizer, iterator or other extensions"
            )
        saved = self.npz[full]
        if is_none(saved):
            return None
        if isinstance(value, chainer.get_array_types()):
            check_array(full, saved, value)
        return NpzDeserializer({full: saved}, self.path)(key, value)


class _StateReader(Reader):
    """Reads update rules, also those that had no state yet when they were saved."""

    def __call__(self, key: str, value: Any) -> Any:
        has_state = self.npz.get(f"{self.path}has_state", True)
        if value is None and not has_state and self.path + key not in self.npz:
            return None
        return super().__call__(key, value)


class _Untouched:
    """Leaves everything as it is."""

    def __getitem__(self, key: str) -> Any:
        return self

    def __call__(self, key: str, value: Any) -> Any:
        return value


class _NotWritten(_Untouched, chainer.Serializer):
    pass


class _NotRead(_Untouched, chainer.Deserializer):
    pass


def is_none(array: np.ndarray) -> bool:
    """Whether an array stands for None."""
    return array.dtype == _NONE.dtype


def check_array(key: str, saved: np.ndarray, value: Any, casting: str = "no") -> None:
    """Refuses an array that is not what is to be read.

    Raises:
        ValueError: With both shapes and dtypes.
    """
    fits = saved.shape == value.shape
    if not fits or not np.can_cast(saved.dtype, value.dtype, casting):
        raise ValueError(
            f"{key} was saved with shape {saved.shape} and dtype {saved.dtype}, but it"
            f" is {value.shape} and {value.dtype} here: the model or the optimizer is"
            f" another one"
        )


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
    writer = Writer()
    stage.serialize(writer)
    return of_range(writer.target, stage.layer_range)


def load_model(stage: Divisible, arrays: Arrays) -> None:
    """Loads a stage; initializes parameters that are not yet."""
    stage.serialize(Reader(arrays))


def loss_arrays(links: Mapping[str, chainer.Link]) -> dict[str, np.ndarray]:
    """Returns parameters and persistent values of what follows the last layer."""
    writer = Writer()
    for name, link in links.items():
        link.serialize(writer[name])
    return writer.target


def load_loss(links: Mapping[str, chainer.Link], arrays: Arrays) -> None:
    """Loads what :func:`loss_arrays` returned."""
    for name, link in links.items():
        link.serialize(Reader(arrays)[name])


# -- optimizers ----------------------------------------------------------------------


def optimizer_arrays(
    optimizer: Any, names: Mapping[str, str] = _NO_NAMES
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
    writer = Writer(names=names)
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
    optimizer: Any, arrays: Arrays, names: Mapping[str, str] = _NO_NAMES
) -> None:
    """Loads what :func:`optimizer_arrays` returned, for the same layers or others."""
    for _, param in _updated(optimizer):
        # What is there must not remain where nothing was saved, nor lend its dtype.
        param.update_rule._state = None
    optimizer.serialize(_StateReader(arrays, names=names))
    for serializer, hook in _hooks(optimizer, Reader(arrays, names=names)):
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


# -- random states -------------------------------------------------------------------


def random_states(objects: Mapping[str, Any]) -> str:
    """Returns the states of random generators as JSON.

    They are the global ones of NumPy and Python, those among ``objects``, and those
    from which iterators among them draw their order.
    """
    states = {name: generator.get() for name, generator in _generators(objects)}
    return json.dumps(states, default=_as_list)


def load_random_states(text: str, objects: Mapping[str, Any]) -> None:
    """Sets random generators to what :func:`random_states` returned."""
    states = json.loads(text)
    for name, generator in _generators(objects):
        if name in states:
            generator.set(states[name])


class _Generator(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], None]


def _generators(objects: Mapping[str, Any]) -> Iterator[tuple[str, _Generator]]:
    yield "numpy", _of_numpy(np.random)
    yield "python", _Generator(random.getstate, _set_python_state)
    for name, value in _with_iterators(objects):
        if hasattr(value, "order_sampler"):
            value = getattr(value.order_sampler, "_random", None)
        if isinstance(value, np.random.RandomState):
            yield name, _of_numpy(value)
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            yield (
                name,
                _Generator(
                    partial(getattr, bits, "state"), partial(setattr, bits, "state")
                ),
            )


def _of_numpy(generator: Any) -> _Generator:
    return _Generator(
        partial(generator.get_state, legacy=False),
        generator.set_state,
    )


def _set_python_state(state: Any) -> None:
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def _with_iterators(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields objects, and of a trainer or an updater its iterators."""
    for name, value in objects.items():
        yield name, value
        updater = getattr(value, "updater", value)
        for key, iterator in getattr(updater, "_iterators", {}).items():
            yield f"{name}/iterator:{key}", iterator


def _as_list(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"a random state with a {type(value)} cannot be saved")


# -- everything else -----------------------------------------------------------------


def object_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state of objects with a method ``serialize``, under their names."""
    writer = Writer()
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(writer[name])
    return writer.target


def load_objects(objects: Mapping[str, Any], arrays: Arrays) -> None:
    """Loads what :func:`object_arrays` returned."""
    reader = Reader(arrays)
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
