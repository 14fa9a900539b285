"""Turns a module of PyTorch into a list of layers.

The forward of a module is traced by ``torch.fx``. It is cut wherever one value is all
that the rest of it needs::

    operations   x -- conv -- bn -- relu -- conv -- add -- flatten -- fc
                                      '--------------'
    layers            0       1     2       3              4          5
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from divisible import Divisible
from torch_layers.layer import TorchLayer, share_before
from torch_layers.modes import in_mode
from torch_layers.names import TorchNames
from torch_layers.shared_memory import stands_for

# Operations that have a value.
_VALUES = ("placeholder", "call_module", "call_function", "call_method")
# Names that a trace gives to tensors, which differ from trace to trace.
_CONSTANT = re.compile(r"_tensor_constant\d+")


class TorchChain(Divisible):
    """The layers that :func:`from_torch` found.

    Attributes:
        chain_names (TorchNames): The path in the module of each layer with parameters
            or buffers: ``chain_names.in_chain('/3/bias')`` is ``'features.3.bias'``.
    """

    chain_names = TorchNames({})

    def torch_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the parameters and buffers of these layers, as the module names them.

        Those of all stages together are the ``state_dict`` of the module that was
        given to :func:`from_torch`.
        """
        state = {}
        for position, layer in enumerate(self, self.layer_range[0]):
            if position in self.chain_names:
                for name, tensor in layer.module.state_dict().items():
                    state[self.chain_names.in_chain(f"{position}/{name}")] = tensor
        return state


def from_torch(module: nn.Module, *, autocast: torch.dtype | None = None) -> TorchChain:
    """Turns a module into a :class:`~divisible.Divisible` of :class:`TorchLayer`.

    The children of ``nn.Sequential`` become layers, those of nested ones as well,
    unless these have hooks. The forward of another module must be a chain of calls that
    ``torch.fx`` can trace: without conditions and loops that depend on values. What
    lies between two cuts is one layer, such as a residual block that is written in the
    forward. The layers hold the given module's own children, nothing is copied.

    Args:
        module (torch.nn.Module): The module.
        autocast (torch.dtype or None): See :class:`TorchLayer`.

    Returns:
        TorchChain: The layers, whose ``chain_names`` has the names in the module.

    Raises:
        ValueError: If the forward cannot be traced, or reads ``self.training`` itself;
            or if ``module`` has hooks.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> model = from_torch(net)
        >>> len(model), model.chain_names.in_chain('/2/bias')
        (3, '2.bias')
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        ...     def forward(self, x):
        ...         h = self.first(x).relu()
        ...         return self.last(torch.cat([h, x], 1)[:, :3])
        >>> [*from_torch(Net()).chain_names.values()]
        ['', 'last']
    """
    model = TorchChain()
    names: dict[int, str] = {}
    known: dict[int, TorchLayer] = {}
    _check_no_hooks(module)
    layers = _children(module) if _is_list(module) else _traced(module)
    for position, (path, each) in enumerate(layers):
        _leave_inputs(each)
        layer = known.get(id(each))
        is_first = layer is None
        if is_first:
            layer = known[id(each)] = TorchLayer(each, autocast)
            share_before(module, layer)
        model.append(layer)
        if is_first and (layer._params or layer._persistent):
            names[position] = path
    model.chain_names = TorchNames(names)
    return model


def _is_list(module: nn.Module) -> bool:
    """Returns whether a call of a module is that of its children, one by one."""
    return isinstance(module, nn.Sequential) and (
        type(module).forward is nn.Sequential.forward
    )


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _is_dissolved(module: nn.Module) -> bool:
    """Returns whether the children of a module within another become layers."""
    return type(module) is nn.Sequential and not _has_hooks(module)


def _check_no_hooks(module: nn.Module) -> None:
    if _has_hooks(module):
        raise ValueError(
            f"from_torch({type(module).__name__}): the module has hooks, which layers"
            f" of its parts would not call. Register them on its children, or use"
            f" TorchLayer(module)"
        )


def _children(module: nn.Module, above: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yields the children of ``nn.Sequential`` with their paths."""
    # A child that occurs twice is called twice.
    for name, child in module._modules.items():
        path = f"{above}.{name}" if above else name
        if _is_dissolved(child):
            yield from _children(child, path)
        else:
            yield path, child


class _Tracer(fx.Tracer):
    """Traces the forward of a module, and those of ``nn.Sequential`` in it."""

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        """Returns whether a call of a module is one operation."""
        return not _is_dissolved(module)


def _traced(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the layers of a module that has a forward of its own."""
    kind = type(module).__name__
    graph, other = (_graph(module, trains) for trains in (True, False))
    for node, twin in itertools.zip_longest(graph.nodes, other.nodes):
        if _text(node) != _text(twin):
            raise ValueError(
                f"from_torch({kind}): the forward reads self.training, before or at"
                f" {(node or twin).name}, which the layers could not follow. Use a"
                f" module for it, such as nn.Dropout"
            )
    for nodes, given, needed in _segments(graph, module):
        yield _as_module(module, nodes, given, needed)


def _graph(module: nn.Module, trains: bool) -> fx.Graph:
    """Returns the operations of a forward, in training or evaluation."""
    kind = type(module).__name__
    try:
        with in_mode(module, trains):
            return _Tracer().trace(module)
    except Exception as error:
        raise ValueError(
            f"from_torch({kind}): its forward cannot be traced: {error}. Write it as an"
            f" nn.Sequential of modules, or list its parts: Divisible(TorchLayer(...),"
            f" ...)"
        ) from error


def _text(node: fx.Node | None) -> str:
    """Returns an operation as text, without the numbers of constants."""
    return "" if node is None else _CONSTANT.sub("constant", str(node.format_node()))


def _segments(
    graph: fx.Graph, module: nn.Module
) -> Iterator[tuple[list[fx.Node], list[fx.Node], Any]]:
    """Yields the operations between cuts, their inputs, and what they return."""
    nodes = [node for node in graph.nodes if node.op in _VALUES]
    place = {node: i for i, node in enumerate(nodes)}
    (output,) = (node for node in graph.nodes if node.op == "output")
    last_use = {
        node: max(place.get(user, len(nodes)) for user in node.users)
        for node in nodes
        if node.users
    }
    given = [node for node in nodes if node.op == "placeholder"]
    segment: list[fx.Node] = []
    for i, node in enumerate(nodes):
        if node.op == "placeholder":
            continue
        segment.append(node)
        live = [each for each in nodes[: i + 1] if last_use.get(each, -1) > i]
        is_end = i == len(nodes) - 1
        may_end = not (
            _is_number(node) or any(_overwrites(user, module) for user in node.users)
        )
        if is_end or (live == [node] and may_end):
            yield segment, given, output.args[0] if is_end else node
            segment, given = [], [node]


def _is_number(node: fx.Node) -> bool:
    """Returns whether an operation returns a size, which is no tensor."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    return node.target in (getattr, operator.floordiv)


def _overwrites(node: fx.Node, module: nn.Module) -> bool:
    """Returns whether an operation works in place on its input, and must stay near it.

    A module whose result is used can write elsewhere; see `_leave_inputs`.
    """
    if node.op == "call_module":
        called = module.get_submodule(node.target)
        return not node.users and getattr(called, "inplace", False) is True
    name = getattr(node.target, "__name__", node.target)
    return node.kwargs.get("inplace") is True or (
        name.endswith("_") and not name.endswith("__")
    )


def _as_module(
    root: nn.Module, nodes: Sequence[fx.Node], given: Sequence[fx.Node], needed: Any
) -> tuple[str, nn.Module]:
    """Returns the path and the module of a layer."""
    node = nodes[0]
    is_call = len(nodes) == 1 and node.op == "call_module" and needed is node
    if is_call and list(node.args) == list(given) and not node.kwargs:
        return node.target, root.get_submodule(node.target)
    graph, new = fx.Graph(), {}
    for each in given:
        # Arguments keep their default values.
        is_argument = each.op == "placeholder"
        copied = graph.node_copy(each) if is_argument else graph.placeholder(each.name)
        new[each] = copied
    for each in nodes:
        for used in each.all_input_nodes:
            if used not in new:
                new[used] = graph.node_copy(used, new.__getitem__)
        new[each] = graph.node_copy(each, new.__getitem__)
    graph.output(fx.node.map_arg(needed, new.__getitem__))
    layer = fx.GraphModule(root, graph, type(root).__name__)
    # Constants become buffers, which the state of the module lacks.
    for path, inner in layer.named_modules():
        theirs = root.get_submodule(path)
        if inner is not theirs:
            stands_for(inner, theirs)
            inner._non_persistent_buffers_set.update(
                name
                for name in inner._buffers
                if name not in theirs._buffers
                or name in theirs._non_persistent_buffers_set
            )
    return "", layer


def _leave_inputs(module: nn.Module) -> None:
    """Switches ``inplace`` off in a module that begins by overwriting its input.

    The input is the output of another layer, which may need it for its backward. The
    results are the same bit for bit.
    """
    while type(module) is nn.Sequential and len(module):
        module = module[0]
    if getattr(module, "inplace", False) is True:
        module.inplace = False
