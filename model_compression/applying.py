"""Models without what was pruned or quantized: ordinary ones, smaller and as exact."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import chainer
import numpy as np

from model_compression.channels import Channels, channels_of
from model_compression.layer_lines import notes
from model_compression.plan import CompressionPlan
from model_compression.quantized_links import (
    add_rule,
    check_kind,
    is_taken_back,
    set_active,
)
from model_compression.rules import Prune, Quantize
from model_compression.selection import weighted_layers, weights_of
from model_compression.shrinking import take_away
from model_compression.stored_links import store


def apply(model: chainer.Link, plan: CompressionPlan) -> chainer.Link:
    """Returns a model as a plan has made it, without what it does not need any more.

    Channels that a rule with ``granularity='channel'`` has set to zero are removed:
    from the layer that gave them, from the normalization behind it, and from the layer
    that read them. Elements, blocks and rows stay, as zeros. What is quantized is
    stored so: a byte for each whole number, and the scales; each call makes an array of
    them for the same kernels. The outputs are those of the model. In
    :func:`chainer.no_backprop_mode` linear layers and convolutions whose inputs are
    quantized too multiply whole numbers where that is faster; :func:`int8_report` says
    where.

    What a metric has taken back, see :class:`Compress`, stays as it is; of a codebook
    the model does not know this: leave its rule out of the plan.

    Applied to a model that was not trained under the plan, it quantizes it as it is; a
    file that was written from the result of another such call then loads into this one.

    Args:
        model (chainer.Link): Trained under the plan; it stays as it is. The undivided
            one: take it from a pipeline by :func:`pipeline.export_npz`.
        plan (CompressionPlan): The plan.

    Returns:
        chainer.Link: Of the same class, without an optimizer. What is stored in few
        bits is no parameter any more.

    Raises:
        TypeError: If the model is no link, or the plan no plan.
        ValueError: If the model is a stage, or not of this plan.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> from model_compression import Compress, CompressionPlan, Prune
        >>> model = chainer.Sequential(L.Linear(4, 10), F.relu, L.Linear(10, 2))
        >>> plan = CompressionPlan([Prune("l2", "/0", 0.7, "channel")])
        >>> optimizer = chainer.optimizers.SGD().setup(model)
        >>> Compress(plan, optimizer).advance(iteration=1, epoch=0.1)
        >>> small = apply(model, plan)
        >>> small[0].W.shape, small[2].W.shape
        ((3, 4), (2, 3))
    """
    if not isinstance(model, chainer.Link) or not isinstance(plan, CompressionPlan):
        raise TypeError(
            f"apply takes a chainer.Link and a CompressionPlan, not"
            f" {type(model).__name__} and {type(plan).__name__}"
        )
    if getattr(model, "is_stage", False):
        raise ValueError(
            "the model is a stage, whose channels another one may read: apply the plan"
            " to the undivided model"
        )
    layers, known = weighted_layers(model), notes(model)
    chosen = plan.layers_of_rules(layers)
    removed = [
        channels_of(path, known, str(rule), layers)
        for rule, paths in zip(plan.rules, chosen)
        if isinstance(rule, Prune) and rule.granularity == "channel"
        for path in weights_of(paths, layers)
    ]
    for rule, paths in zip(plan.rules, chosen):
        if isinstance(rule, Quantize):
            for path in paths:
                check_kind(path, layers[path].kinds, rule)
    small = copy.deepcopy(model)
    small.cleargrads()
    for param in small.params():
        param.update_rule = None
    params, links = dict(small.namedparams()), dict(small.namedlinks())
    for channels in removed:
        _remove(channels, params, links)
    quantized = [
        (rule, links[path])
        for rule, paths in zip(plan.rules, chosen)
        if isinstance(rule, Quantize)
        for path in paths
        if not is_taken_back(links[path], rule)
    ]
    for rule, link in quantized:
        if not rule.has_codebook:
            add_rule(link, rule)
            set_active(link, rule, True)
    for rule, link in quantized:
        store(link, rule)
    _describe_anew(small)
    return small


def _remove(
    channels: Channels, params: Mapping[str, Any], links: Mapping[str, chainer.Link]
) -> None:
    """Takes the channels of a layer away that are zero."""
    weight = params[channels.weight]
    is_zero = (weight.array.reshape(len(weight), -1) == 0).all(axis=1)
    for path in channels.parameters:
        is_zero &= params[path].array == 0
    kept = np.flatnonzero(~chainer.get_device("@numpy").send(is_zero))
    take_away(channels, kept, {path: [each] for path, each in params.items()}, links)


def _describe_anew(model: chainer.Link) -> None:
    """Lets lists of layers that keep a text of each see their sizes."""
    for link in model.links():
        if hasattr(link, "model_layers"):
            for position, layer in enumerate(list(link)):
                link[position] = layer
