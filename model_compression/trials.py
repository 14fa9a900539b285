"""Trials of how much a metric loses by each layer, method and degree."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Callable

import chainer
import numpy as np

from divisible.communication.attempts import on_all_ranks
from divisible.files import write_json
from divisible.number_lists import as_list
from divisible.records import reading_json, shown
from divisible.side_files import SideFiles
from model_compression.affine import Affine
from model_compression.codebooks import averaged, clusters
from model_compression.plan import Rule
from model_compression.quantized_links import NAMES
from model_compression.rank_layers import RankLayers
from model_compression.rules import Prune, Quantize, check_layers
from model_compression.scores import lowest, score, spread
from model_compression.selection import check_rows, output_axis, select
from model_compression.sensitivity_table import (
    BETTER,
    KIND,
    Sensitivity,
    SensitivityTrial,
)


def sensitivity(
    model: Any,
    evaluate: Callable[[Any], float],
    *,
    methods: str | Sequence[str] = "magnitude",
    degrees: float | Sequence[float] = (0.3, 0.5, 0.7, 0.9),
    layers: str | Sequence[str] = "*",
    granularity: Any = "element",
    better: str = "higher",
    path: str | os.PathLike | None = None,
    pipeline: Any = None,
) -> Sensitivity:
    """Measures how much of each layer can be pruned or quantized, without training.

    Args:
        model (chainer.Link or list): Undivided model, trained; with a pipeline, the
            stages of this rank. Weights are changed for each trial, and restored.
        evaluate: Function that takes the model, and returns the metric as a float.
        methods (str or list of str): Methods to try: ``'magnitude'``, ``'l1'``,
            ``'l2'``, each with all degrees; ``'int2'`` to ``'int8'``, ``'codebook2'``
            to ``'codebook8'``, for layers that can compute with few bits.
        degrees (float or list of float): Degrees to try, between 0 and 1; see ``to`` of
            :class:`Prune`.
        layers (str or list of str): Layers to try, in the form of :class:`Prune`.
        granularity: Granularity of :class:`Prune`; not ``'channel'``, which changes
            other layers too.
        better (str): Whether a ``'higher'`` metric is better, or a ``'lower'`` one.
        path: File of the trials so far. A run that was interrupted continues from it.
            Rank 0 reads and writes it, and warns once if it cannot be written.
        pipeline (pipeline.Pipeline): Pipeline of the model; all ranks call this
            function, and ``evaluate`` returns the same number on all of them. ``None``
            for a model in one process.

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
    links = as_list(model)
    if pipeline is None and getattr(model, "is_stage", False):
        raise ValueError(
            "the model is a stage: give the undivided model, or the pipeline as well"
        )
    if better not in BETTER:
        raise ValueError(f"better must be 'higher' or 'lower', not {better!r}")
    if not callable(evaluate):
        raise TypeError(
            f"evaluate must be a function of the model, not {type(evaluate).__name__}"
        )
    rules, gather = _trials(methods, degrees, granularity), _gather_of(pipeline)
    ranks = RankLayers(links, gather)
    chosen = select(check_layers(layers, "sensitivity"), ranks.known, "sensitivity")
    check_rows(chosen, ranks.known, granularity, "sensitivity")
    sizes = {layer: ranks.sizes[layer] for layer in chosen}
    result = Sensitivity(float("nan"), [], sizes, better, granularity)
    checksum = ranks.checksum()
    # Rank 0 writes the file, which other hosts may not have.
    is_chief = path is not None and (pipeline is None or pipeline.is_chief)
    what = "the trials so far cannot be read"
    read = functools.partial(_before, path if is_chief else None, result, checksum)
    before = gather(on_all_ranks(gather, what, read, refusal=ValueError))[0]
    result.base = _metric(evaluate, model) if before is None else before.base
    done = {(t.layer, t.method, t.degree): t for t in before.trials} if before else {}
    files = SideFiles("The trials so far", "Free space there, or give another path.")
    for layer in chosen:
        for rule in rules:
            if isinstance(rule, Quantize) and not {*NAMES} & {
                *ranks.known[layer].kinds
            }:
                continue
            degree = getattr(rule, "to", 0.0)
            trial = done.get((layer, rule.method, degree))
            if trial is None:
                trial = _try(
                    ranks, functools.partial(_metric, evaluate, model), layer, rule
                )
                done[layer, rule.method, degree] = trial
            result.trials.append(trial)
            if is_chief:
                fields = result.fields()
                fields["trials"] = [each.fields() for each in done.values()]
                with files.writing(path):
                    write_json(path, {"divisible": KIND, "model": checksum, **fields})
    return result


def _gather_of(pipeline: Any) -> Callable[[Any], list]:
    """Returns a function that returns the values of all ranks."""
    if pipeline is None:
        return lambda value: [value]
    return lambda value: pipeline.internals.gather(value, "compress")


def _metric(evaluate: Callable[[Any], float], model: Any) -> float:
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
            raise ValueError(
                "'taylor' needs gradients, and no layer trains in these trials: try"
                " 'magnitude', 'l1' or 'l2'"
            )
        if str(method).startswith(("int", "codebook")):
            rules.append(Quantize(method))
        else:
            rules += [
                Prune(method, layers="*", to=each, granularity=granularity)
                for each in degrees
            ]
    if not rules:
        raise ValueError("methods or degrees is empty: give one of each at least")
    return rules


def _try(
    ranks: RankLayers, metric_of: Callable[[], float], layer: str, rule: Rule
) -> SensitivityTrial:
    weights, axis = ranks.weights(layer), output_axis(ranks.known[layer].kinds)
    kept = [
        (param, param.array.copy()) for params in weights.values() for param in params
    ]
    try:
        # Copies of a tied weight count once.
        here = {
            path: [_change(param, rule, axis) for param in params][0]
            for path, params in weights.items()
        }
        n_bytes = sum(ranks.joined(here).values())
        start = time.perf_counter()
        metric = metric_of()
        seconds = time.perf_counter() - start
    finally:
        for param, array in kept:
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


def _before(
    path: str | os.PathLike | None, result: Sensitivity, checksum: int
) -> Sensitivity | None:
    """Returns the trials of an interrupted run; ``None`` without any."""
    if path is None or not Path(path).exists():
        return None
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
    return before
