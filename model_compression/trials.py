"""Trials of how much a metric loses by each layer, method and degree."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Callable

import chainer
import numpy as np

from divisible.files import write_json
from divisible.records import reading_json, shown
from divisible.side_files import SideFiles
from model_compression.affine import Affine
from model_compression.codebooks import averaged, clusters
from model_compression.plan import Rule
from model_compression.rules import Prune, Quantize, check_layers
from model_compression.scores import lowest, score, spread
from model_compression.selection import check_rows, output_axis, select, weighted_layers
from model_compression.sensitivity_table import (
    BETTER,
    KIND,
    Sensitivity,
    SensitivityTrial,
)


def sensitivity(
    model: chainer.Link,
    evaluate: Callable[[chainer.Link], float],
    *,
    methods: str | Sequence[str] = "magnitude",
    degrees: float | Sequence[float] = (0.3, 0.5, 0.7, 0.9),
    layers: str | Sequence[str] = "*",
    granularity: Any = "element",
    better: str = "higher",
    path: str | os.PathLike | None = None,
) -> Sensitivity:
    """Measures how much of each layer can be pruned or quantized, without training.

    Args:
        model (chainer.Link): Undivided model, trained. Its weights are changed for each
            trial, and restored.
        evaluate: Function that takes the model, and returns the metric as a float.
        methods (str or list of str): Methods to try: ``'magnitude'``, ``'l1'``,
            ``'l2'``, each with all degrees; ``'int2'`` to ``'int8'``, ``'codebook2'``
            to ``'codebook8'``.
        degrees (float or list of float): Degrees to try, between 0 and 1; see ``to`` of
            :class:`Prune`.
        layers (str or list of str): Layers to try, in the form of :class:`Prune`.
        granularity: Granularity of :class:`Prune`; not ``'channel'``, which changes
            other layers too.
        better (str): Whether a ``'higher'`` metric is better, or a ``'lower'`` one.
        path: File of the trials so far. A run that was interrupted continues from it.
            If it cannot be written, a warning is given once.

    Returns:
        Sensitivity: The table.

    Raises:
        TypeError: If ``evaluate`` is not a function, or does not return a number.
        ValueError: If an argument is wrong, or the file is of another model or of other
            trials.

    Example:
        >>> import chainer.links as L
        >>> model = chainer.Sequential(L.Linear(4, 3), L.Linear(3, 2))
        >>> x = np.ones((5, 4), np.float32)
        >>> result = sensitivity(
        ...     model, lambda model: -float(abs(model(x).array).mean()),
        ...     methods=["l1", "int8"], degrees=[0.5])
        >>> [trial.column for trial in result.trials[:2]]
        ['l1 50%', 'int8']
    """
    if getattr(model, "is_stage", False):
        raise ValueError("the model is a stage: give the undivided model")
    if better not in BETTER:
        raise ValueError(f"better must be 'higher' or 'lower', not {better!r}")
    if not callable(evaluate):
        raise TypeError(
            f"evaluate must be a function of the model, not {type(evaluate).__name__}"
        )
    known = weighted_layers(model)
    plans = _trials(methods, degrees, granularity)
    chosen = select(check_layers(layers, "sensitivity"), known, "sensitivity")
    check_rows(chosen, known, granularity, "sensitivity")
    params = dict(model.namedparams())
    weights = {layer: [params[p] for p in known[layer].weights] for layer in chosen}
    sizes = {layer: sum(p.array.nbytes for p in weights[layer]) for layer in chosen}
    result = Sensitivity(float("nan"), [], sizes, better, granularity)
    checksum = _checksum(params)
    if path is not None and Path(path).exists():
        _resume(result, path, checksum)
    else:
        result.base = _metric(evaluate, model)
    done = {(each.layer, each.method, each.degree): each for each in result.trials}
    result.trials = []
    files = SideFiles("The trials so far", "Free space there, or give another path.")
    for layer in chosen:
        for rule in plans:
            degree = getattr(rule, "to", 0.0)
            trial = done.get((layer, rule.method, degree))
            if trial is None:
                axis = output_axis(known[layer].kinds)
                trial = _try(model, evaluate, layer, weights[layer], rule, axis)
                done[layer, rule.method, degree] = trial
            result.trials.append(trial)
            if path is not None:
                fields = result.fields()
                fields["trials"] = [each._asdict() for each in done.values()]
                with files.writing(path):
                    write_json(path, {"divisible": KIND, "model": checksum, **fields})
    return result


def _metric(evaluate: Callable[[chainer.Link], float], model: chainer.Link) -> float:
    found = evaluate(model)
    found = found.array if isinstance(found, chainer.Variable) else found
    try:
        return float(found)
    except (TypeError, ValueError):
        raise TypeError(
            f"evaluate must return the metric as a number, not {shown(found)}"
        ) from None


def _trials(methods: Any, degrees: Any, granularity: Any) -> list[Rule]:
    """Returns a rule for each column, which checks the arguments."""
    degrees = [degrees] if isinstance(degrees, Real) else degrees
    if granularity == "channel":
        raise ValueError(
            "a channel reaches into other layers: try granularity='row', which sets an"
            " output to zero"
        )
    rules: list[Rule] = []
    for method in (methods,) if isinstance(methods, str) else methods:
        if method == "taylor":
            raise ValueError("'taylor' needs gradients, and nothing trains here")
        if str(method).startswith(("int", "codebook")):
            rules.append(Quantize(method))
        else:
            rules += [
                Prune(method, layers="*", to=each, granularity=granularity)
                for each in degrees
            ]
    if not rules:
        raise ValueError("there is no method, or no degree, to try")
    return rules


def _try(
    model: chainer.Link,
    evaluate: Callable[[chainer.Link], float],
    layer: str,
    weights: Sequence[chainer.Parameter],
    rule: Rule,
    axis: int,
) -> SensitivityTrial:
    kept = [param.array.copy() for param in weights]
    try:
        n_bytes = sum(_change(param, rule, axis) for param in weights)
        start = time.perf_counter()
        metric = _metric(evaluate, model)
        seconds = time.perf_counter() - start
    finally:
        for param, array in zip(weights, kept):
            param.array[...] = array
    return SensitivityTrial(
        layer, rule.method, getattr(rule, "to", 0.0), metric, n_bytes, seconds
    )


def _change(param: chainer.Parameter, rule: Rule, axis: int) -> float:
    """Changes a weight, and returns the bytes that it needs afterwards."""
    weight = chainer.get_device("@numpy").send(param.array)
    if isinstance(rule, Prune):
        scores = score(rule.method, weight, rule.granularity)
        gone = lowest(scores, np.zeros(scores.shape, bool), rule.to)
        is_zero = spread(gone, weight.shape, rule.granularity)
        changed = np.where(is_zero, 0, weight)
        n_bytes = (~is_zero).sum() * weight.itemsize
    else:
        n_bytes = weight.size * rule.bits / 8
        if rule.has_codebook:
            changed = averaged(weight, clusters(weight, rule.bits))
        else:
            affine = Affine.of_weight(weight, rule.bits, rule.symmetric, True, axis)
            changed = affine.real(affine.whole(weight))
    param.array[...] = param.device.send(changed.astype(param.dtype))
    return float(n_bytes)


def _checksum(params: Mapping[str, chainer.Parameter]) -> int:
    found = 0
    host = chainer.get_device("@numpy")
    for path in sorted(params):
        if params[path].array is not None:
            array = np.ascontiguousarray(host.send(params[path].array))
            found = zlib.crc32(path.encode(), zlib.crc32(array.view(np.uint8), found))
    return found


def _resume(result: Sensitivity, path: str | os.PathLike, checksum: int) -> None:
    """Reads the trials of an interrupted run."""
    with reading_json(path, f"a {KIND}") as content:
        saved = content.get("model")
    before = Sensitivity.load(path)
    if saved != checksum:
        raise ValueError(f"{path} has trials of another model: give another file")
    granularity = result.granularity
    if isinstance(granularity, list):
        granularity = tuple(granularity)
    if (before.granularity, before.better) != (granularity, result.better):
        raise ValueError(
            f"{path} has trials with granularity {before.granularity!r} where"
            f" {before.better} is better, not {granularity!r} and {result.better}"
        )
    result.base, result.trials = before.base, before.trials
