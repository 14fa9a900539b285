"""Models without pruned or quantized parts: ordinary ones, smaller and as exact."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_compat.npz import NpzArrays
from divisible.terminal_text import printable
from model_compression import block_links
from model_compression.channels import Channels, channels_of, means_that_shift
from model_compression.layer_lines import notes
from model_compression.plan import CompressionPlan
from model_compression.quantized_links import (
    add_rule,
    check_kind,
    is_taken_back,
    note_bits,
    noted_bits,
)
from model_compression.rules import Prune, Quantize
from model_compression.selection import weighted_layers, weights_of
from model_compression.shrinking import make_room, n_channels, take_away
from model_compression.skipping import check_sizes
from model_compression.stored_links import names_to_store, store

#: Endings of names of values in a file that its model needs before the others.
_STATES = "_is_quantized", "W_live", "W_skips"


def apply(model: chainer.Link, plan: CompressionPlan) -> chainer.Link:
    """Returns a trained model without the parts that its plan made unnecessary.

    A rule with ``granularity='channel'`` sets channels to zero. They are removed from
    the layer that outputs them, from the normalization after it, and from the layer
    that reads them. Elements, blocks and rows stay, as zeros. Blocks that a layer skips
    are not stored. Quantized parameters are
    stored in few bits: a byte for each whole number, and the scales; each call makes an
    array from them for the same kernels. The outputs are those of the model. In
    :func:`chainer.no_backprop_mode`, linear layers and convolutions whose inputs are
    quantized too multiply whole numbers where that is faster; :func:`int8_report` lists
    them.

    Steps that a metric has taken back, see :class:`Compress`, are not applied. For a
    codebook the model does not record this: leave its rule out of the plan.

    A model that was not trained under the plan is quantized with its present weights.
    Save the result by ``save_npz``, and read it by :func:`load_applied`.

    Args:
        model (chainer.Link): Undivided model, trained under the plan, which is not
            changed. Get one from a pipeline by :func:`pipeline.export_npz`.
        plan (CompressionPlan): The plan.

    Returns:
        chainer.Link: A model of the same class, without an optimizer. Parameters that
        are stored in few bits are not parameters any more.

    Raises:
        TypeError: If ``model`` is not a link, or ``plan`` is not a plan.
        ValueError: If the model is a stage, does not fit the plan, or has a quantized
            parameter with values that are not finite.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> from model_compression import Compress, CompressionPlan, Prune
        >>> model = chainer.Sequential(L.Linear(4, 10), F.relu, L.Linear(10, 2))
        >>> rule = Prune("l2", layers="/0", to=0.7, granularity="channel")
        >>> plan = CompressionPlan([rule])
        >>> optimizer = chainer.optimizers.SGD().setup(model)
        >>> Compress(plan, optimizer).advance(iteration=1, epoch=0.1)
        >>> small = apply(model, plan)
        >>> small[0].W.shape, small[2].W.shape
        ((3, 4), (2, 3))
    """
    rules = _rules_of(model, plan, "apply")
    _refuse_not_finite(model, rules)
    small = _copied(model)
    params, links = dict(small.namedparams()), dict(small.namedlinks())
    for channels in rules.removed:
        _remove(channels, params, links)
    return _stored(small, rules)


def load_applied(
    path: str | os.PathLike, model: chainer.Link, plan: CompressionPlan
) -> chainer.Link:
    """Returns a model that :func:`apply` returned, from a file.

    Args:
        path: File written by ``chainer.serializers.save_npz``.
        model (chainer.Link): Undivided model as it was built, with any values, which is
            not changed.
        plan (CompressionPlan): Plan that was applied.

    Returns:
        chainer.Link: The model, with the sizes and values of the file.

    Raises:
        OSError: If the file cannot be read.
        TypeError, ValueError: If an argument is wrong, see :func:`apply`; or if the
            file is of another model or plan, or damaged.

    Example:
        >>> import os, tempfile
        >>> import chainer.links as L
        >>> from model_compression import CompressionPlan, Quantize
        >>> plan = CompressionPlan([Quantize("int8")])
        >>> small = apply(chainer.Sequential(L.Linear(4, 2)), plan)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "small.npz")
        ...     chainer.serializers.save_npz(file, small)
        ...     again = load_applied(file, chainer.Sequential(L.Linear(4, 2)), plan)
        >>> x = np.ones((1, 4), np.float32)
        >>> bool((again(x).array == small(x).array).all())
        True
    """
    rules = _rules_of(model, plan, "load_applied")
    small = plan.prepare(_copied(model))
    try:
        with NpzArrays(os.fspath(path)) as file:
            _prepare_for(file, small, rules)
        small = _stored(small, rules)
        with NpzArrays(os.fspath(path)) as file:
            _check_alike(file, small)
        chainer.serializers.load_npz(path, small)
        _check_bits(small)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"{os.fspath(path)} is not of this model under this plan, or it is"
            f" damaged: {error}"
        ) from None
    return small


def _prepare_for(file: NpzArrays, small: chainer.Link, rules: _Rules) -> None:
    """Gives a model the sizes in a file, and marks the weights in few bits."""
    params = {path: [param] for path, param in small.namedparams()}
    links = dict(small.namedlinks())
    names = {_parameter_of(f"/{name}"): name for name in file.files}
    for channels in rules.removed:
        members = {channels.weight, *channels.parameters, channels.reader}
        sizes = {each: file[names[each]].shape for each in members & names.keys()}
        n = n_channels(channels, sizes)
        if n:
            make_room(channels, n, params, links)
    for name in file.files:
        # A weight whose quantization a metric took back is not stored in few bits.
        owner, _, own = f"/{name}".rpartition("/")
        state = getattr(links.get(owner or "/"), own, None)
        if name.endswith(_STATES) and state is not None:
            state[...] = file[name]


def _check_alike(file: NpzArrays, small: chainer.Link) -> None:
    """Refuses a file that has other arrays than a model.

    Chainer ignores arrays that only the file has, and repeats one row for all rows.

    Raises:
        ValueError: If a name, a shape or the dtype of whole numbers differs.
    """
    writer = chainer.serializers.DictionarySerializer()
    writer.save(small)
    others = {*file.files} - writer.target.keys()
    if others:
        raise ValueError(f"the model has no {printable(min(others))}")
    for name in file.files:
        here, there = writer.target[name], file[name]
        if here.dtype == object or there.dtype == object:
            # A layer without a size, or without a bias.
            continue
        if here.shape != there.shape:
            raise ValueError(f"{name} is of {there.shape}, not of {here.shape}")
        if "f" not in here.dtype.kind + there.dtype.kind and here.dtype != there.dtype:
            raise ValueError(f"{name} is {there.dtype}, not {here.dtype}")


def _check_bits(small: chainer.Link) -> None:
    """Refuses numbers of other bits than those of the plan."""
    for path, link in small.namedlinks():
        ranges = getattr(link, "ranges", None)
        for target, rule in ranges.rules.items() if ranges else ():
            bits = noted_bits(link, target)
            if bits not in (None, rule.bits):
                raise ValueError(f"the {target} of {path} has {bits} bits in the file")


def _parameter_of(path: str) -> str:
    """Returns the path of the parameter to which an array in a file belongs."""
    for ending in ("_whole", "_numbers", "_blocks"):
        path = path.removesuffix(ending)
    return path


class _Rules(NamedTuple):
    """The layers that the rules of a plan name, and the channels to remove."""

    rules: Sequence[Any]
    chosen: Sequence[Sequence[str]]
    removed: Sequence[Channels]


def _rules_of(model: Any, plan: Any, name: str) -> _Rules:
    if not isinstance(model, chainer.Link) or not isinstance(plan, CompressionPlan):
        raise TypeError(
            f"{name} takes a chainer.Link and a CompressionPlan, not"
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
    check_sizes(plan.rules, chosen, removed, layers)
    return _Rules(plan.rules, chosen, removed)


def _copied(model: chainer.Link) -> chainer.Link:
    """Returns a copy without an optimizer."""
    small = copy.deepcopy(model)
    small.cleargrads()
    for param in small.params():
        param.update_rule = None
    return small


def _quantized(
    model: chainer.Link, rules: _Rules
) -> list[tuple[Quantize, str, chainer.Link]]:
    """Returns the links that are quantized, with their rules and paths."""
    links = dict(model.namedlinks())
    return [
        (rule, path, links[path])
        for rule, paths in zip(rules.rules, rules.chosen)
        if isinstance(rule, Quantize)
        for path in paths
        if not is_taken_back(links[path], rule)
    ]


def _refuse_not_finite(model: chainer.Link, rules: _Rules) -> None:
    """Refuses values that whole numbers would replace by finite ones."""
    for rule, path, link in _quantized(model, rules):
        for name in names_to_store(link, rule):
            param = getattr(link, name)
            if not rule.has_codebook and not param.xp.isfinite(param.array).all():
                raise ValueError(
                    f"{rule}: {path}/{name} has values that are not finite, and whole"
                    f" numbers are: the training diverged before"
                )


def _stored(small: chainer.Link, rules: _Rules) -> chainer.Link:
    """Stores the quantized parameters of a model in few bits."""
    links = dict(small.namedlinks())
    quantized = [(rule, link) for rule, _, link in _quantized(small, rules)]
    for each in small.links():
        if hasattr(each, "dissolve_transposes"):
            # Each layer stores its weights in few bits in the orientation that it uses.
            each.dissolve_transposes([link for _, link in quantized])
    for rule, link in quantized:
        if not rule.has_codebook:
            add_rule(link, rule)
            note_bits(link, rule)
    for rule, link in quantized:
        store(link, rule)
    for link in links.values():
        if isinstance(link, block_links.SkipsBlocks):
            block_links.finish(link)
    _describe_anew(small)
    return small


def _remove(
    channels: Channels, params: Mapping[str, Any], links: Mapping[str, chainer.Link]
) -> None:
    """Removes the channels of a layer that are zero."""
    weight = params[channels.weight]
    is_zero = (weight.array.reshape(len(weight), -1) == 0).all(axis=1)
    for path in channels.parameters:
        is_zero &= params[path].array == 0
    for link in means_that_shift(channels, links):
        is_zero &= link.avg_mean == 0
    kept = np.flatnonzero(~chainer.get_device("@numpy").send(is_zero))
    take_away(channels, kept, {path: [each] for path, each in params.items()}, links)


def _describe_anew(model: chainer.Link) -> None:
    """Updates the texts by which lists of layers describe their layers."""
    for link in model.links():
        if hasattr(link, "describe_anew"):
            link.describe_anew()
