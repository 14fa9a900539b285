"""A module of PyTorch as a link of Chainer."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import chainer
import torch
from torch import nn

from chainer_kernels.hooks import is_observed
from divisible.random_streams import stream_words
from divisible.running_averages import RunningAverage
from torch_layers.chained import ChainedFunction
from torch_layers.function import TorchFunction
from torch_layers.modes import in_mode
from torch_layers.norms import NORMALIZATIONS, average_of, averaging_modules, prepare
from torch_layers.random_numbers import layer_stream, may_draw
from torch_layers.shared_memory import SharedMemory, Trained
from torch_layers.structures import with_leaves, without_leaves

# Attributes that a copy of a layer makes for itself.
_OWN = ("module", "norms", "_memory", "_parts")

# The layers that share their memory before the state of a module is read or loaded.
_layers: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet] = (
    weakref.WeakKeyDictionary()
)


class TorchLayer(chainer.Link):
    """A module of PyTorch as a layer of a :class:`~divisible.Divisible`.

    The parameters of the module are parameters of this link, under the names that the
    module gives them, and with the same memory. So Chainer's optimizers and hooks, and
    snapshots, see ordinary parameters, and ``module.state_dict()`` has their present
    values. The buffers of the module are persistent values of the link. The gradients
    are computed by ``torch.autograd``, and stored where Chainer has them.

    ``chainer.config.train`` decides about training and evaluation, and
    ``chainer.config.enable_backprop`` takes the place of ``torch.no_grad``.

    Args:
        module (torch.nn.Module): The module. It may have several inputs and outputs,
            and tuples, lists and dictionaries of them. Outputs of bfloat16 become
            float32. Modules that share a parameter share it as layers, too.
        autocast (torch.dtype or None): The dtype in which to compute what
            ``torch.autocast`` rounds, such as ``torch.bfloat16``.

    Attributes:
        module (torch.nn.Module): The given module.
        norms (tuple): The batch normalizations in it that have running averages.

    Raises:
        TypeError: If ``module`` is not a module, or has bfloat16 parameters.
        ValueError: If a parameter has the name of an attribute of a link.

    Example:
        >>> import numpy as np
        >>> from divisible import Divisible
        >>> model = Divisible(TorchLayer(nn.Linear(3, 2)), chainer.functions.relu)
        >>> sorted(path for path, _ in model.namedparams())
        ['/0/bias', '/0/weight']
        >>> chainer.functions.sum(model(np.ones((4, 3), np.float32))).backward()
        >>> model[0].weight.grad.shape
        (2, 3)
        >>> model[0].bias.array[...] = 5
        >>> model[0].module.bias.tolist()
        [5.0, 5.0]
    """

    #: The module has its parameters as they are.
    takes_transposes = False

    def __init__(self, module: nn.Module, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"TorchLayer needs a torch.nn.Module, not {type(module).__name__}. Give"
                f" functions to Divisible as they are, if they are Chainer's, or wrap"
                f" them in a module"
            )
        self._autocast = autocast
        # Names of the parameters whose tensors were frozen when last seen.
        self._frozen: set[str] = set()
        self._memory = SharedMemory(self, module)
        self._begin(module)

    def _begin(self, module: nn.Module) -> None:
        self.module = module
        self._draws = may_draw(module)
        self.norms = tuple(averaging_modules(module))
        self._parts = tuple(module.modules())
        self._is_simple = not (
            self._draws or self.norms or any([each._buffers for each in self._parts])
        )
        for each in self.norms:
            prepare(each)
        share_before(module, self)

    @property
    def normalizes(self) -> bool:
        """Whether the module is a normalization, which float16 models keep float32."""
        return isinstance(self.module, NORMALIZATIONS)

    @property
    def is_simple(self) -> bool:
        """Whether the module is one of PyTorch's own without buffers and hooks.

        Its call runs no code of the user, draws no numbers, and computes the same in
        training and evaluation.
        """
        if not self._is_simple or self._autocast is not None:
            return False
        for each in self._parts:
            if (
                each._forward_hooks
                or each._forward_pre_hooks
                or each._backward_hooks
                or each._backward_pre_hooks
            ):
                return False
        return True

    @property
    def library_threads(self) -> int:
        """The number of threads that PyTorch computes on."""
        return torch.get_num_threads()

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """The module, for ``print`` and for errors."""
        yield "module", self.module
        if self._autocast is not None:
            yield "autocast", self._autocast

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module.

        Args:
            args: Variables, arrays, other values, and tuples, lists and dictionaries
                of them.
            kwargs: Arguments of the same kinds, by keyword.

        Returns:
            What the module returns, with variables in place of tensors. Those that
            need no gradient, such as integers, have ``requires_grad=False``.
        """
        trained = self.begin_call()
        if kwargs or not all([isinstance(arg, _LEAVES) for arg in args]):
            leaves: Sequence[Any] = []
            structure = without_leaves((args, kwargs), _is_leaf, leaves)
        else:
            leaves, structure = args, None
        needed = [getattr(leaf, "requires_grad", False) for leaf in leaves]
        function = TorchFunction(self, structure, needed, trained.tensors)
        found = function.outputs_of(function.apply((*leaves, *trained.parameters)))
        if trained.has_buffers:
            self.end_call(trained)
        return found

    @classmethod
    def run_chain(
        cls,
        layers: Sequence[Any],
        index: int,
        position: int,
        x: Any,
        enter: Callable[[int], None],
    ) -> tuple[int, Any] | None:
        """Runs neighbouring layers as one function, if they are of this class.

        Results have the same bits as without it. Layers run one by one where a hook or
        debug mode observes single functions, and where no gradient of ``x`` is needed.

        Args:
            layers: Layers. Nothing else runs between them.
            index: Index of the first layer to run, which is of this class.
            position: Its position in the undivided model.
            x: Its input.
            enter: Called with the position of each layer before it runs.

        Returns:
            How many layers have run, and the output of the last one. ``None`` if no
            layer has run.

        Example:
            >>> import numpy as np
            >>> layers = [TorchLayer(nn.Linear(3, 2)), TorchLayer(nn.ReLU())]
            >>> x, entered = chainer.Variable(np.ones((4, 3), np.float32)), []
            >>> n, y = TorchLayer.run_chain(layers, 0, 7, x, entered.append)
            >>> n, y.shape, entered
            (2, (4, 2), [7, 8])
        """
        end = index
        if cls is TorchLayer and isinstance(x, chainer.Variable) and x.requires_grad:
            while end < len(layers) and _may_be_chained(layers[end]):
                end += 1
        if end < index + 2 or is_observed():
            return None
        return ChainedFunction(layers[index:end], position).run(x, enter)

    def begin_call(self) -> Trained:
        """Shares memory, and returns the parameters that have a gradient."""
        trained = self._memory.trained()
        if self._frozen or trained.frozen:
            self._follow(trained)
        return trained

    def end_call(self, trained: Trained) -> None:
        """Shares the memory of buffers that the module has replaced, such as a count.

        Args:
            trained: The result of :meth:`begin_call`.
        """
        if trained.has_buffers:
            self._memory.check_buffers()

    def _follow(self, trained: Trained) -> None:
        """Disables updates while tensors are frozen, weight decay included.

        A rule that is disabled so has a mark, which snapshots save with it. A rule that
        was disabled otherwise stays so.
        """
        for shared, param, _, trains in trained.entries:
            rule = param.update_rule
            if not trains:
                self._frozen.add(shared.name)
                if rule is not None and rule.enabled:
                    rule.enabled, rule.rests_with_tensor = False, True
            elif shared.name in self._frozen:
                self._frozen.discard(shared.name)
                if getattr(rule, "rests_with_tensor", False):
                    rule.enabled, rule.rests_with_tensor = True, False

    def rules_loaded(self) -> None:
        """Freezes the tensors that were frozen when a state was saved.

        Call it when update rules have been loaded, or have moved to this rank. Tensors
        that are enabled after that are updated again.
        """
        for shared, param, tensor, trains in self._memory.trained().entries:
            if trains and getattr(param.update_rule, "rests_with_tensor", False):
                tensor.requires_grad_(False)
            if not tensor.requires_grad:
                self._frozen.add(shared.name)

    def share(self) -> None:
        """Shares memory again with the module, if either side has got other memory.

        Each call of the layer does so, and whatever reads or loads the state of either.
        """
        self._memory.check()

    def share_parameters(self) -> None:
        """Shares the memory of parameters again, as :meth:`share` does."""
        self._memory.check_parameters()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Saves or loads parameters and buffers; see :meth:`chainer.Link.serialize`."""
        self.share()
        super().serialize(serializer)

    def contexts(self) -> list[AbstractContextManager]:
        """Returns the contexts of a call."""
        contexts: list[AbstractContextManager] = []
        if not chainer.config.train:
            contexts.append(in_mode(self.module, False))
        if self._draws:
            stream = layer_stream()
            if stream is not None:
                contexts.append(stream)
        if self._autocast is not None:
            contexts.append(torch.autocast("cpu", self._autocast))
        return contexts

    def running_averages(self) -> list[RunningAverage]:
        """Returns the running averages, which replicas move alike."""
        return [average_of(each) for each in self.norms]

    def call(self, structure: Any, inputs: Sequence[torch.Tensor]) -> Any:
        """Calls the module with tensors.

        Args:
            structure: The arguments, with slots for their leaves; ``None`` if each is
                a leaf.
            inputs: The leaves.
        """
        if self._draws and stream_words() is not None:
            # Masks are drawn in the order of the memory, in which kernels may have
            # written the input.
            inputs = [x.contiguous() for x in inputs]
        if structure is None:
            return self.module(*inputs)
        args, kwargs = with_leaves(structure, inputs)
        return self.module(*args, **kwargs)

    def copy(self, mode: str = "share") -> TorchLayer:
        """Copies the layer; see :meth:`chainer.Link.copy`.

        Raises:
            ValueError: For ``'init'``, since a module is built with its weights.
        """
        if mode == "init":
            raise ValueError(
                f"{type(self.module).__name__} cannot be copied with new weights: build"
                f" another module, or call reset_parameters() of a copy's module"
            )
        return super().copy(mode)

    def __copy__(self) -> TorchLayer:
        return self._copied(copy.copy, {})

    def __deepcopy__(self, memo: dict) -> TorchLayer:
        return self._copied(lambda value: copy.deepcopy(value, memo), memo)

    def _copied(self, copied: Any, memo: dict) -> TorchLayer:
        self.share()
        ret = type(self).__new__(type(self))
        memo[id(self)] = ret
        for name, value in vars(self).items():
            if name not in _OWN:
                vars(ret)[name] = copied(value)
        ret._give(copy.deepcopy(self.module, {}))
        return ret

    def __getstate__(self) -> dict[str, Any]:
        self.share()
        state = {k: v for k, v in vars(self).items() if k not in _OWN}
        return {**state, "module": self.module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        module = state.pop("module")
        vars(self).update(state)
        self._give(module)

    def _give(self, module: nn.Module) -> None:
        """Gives a copy, which has its parameters, a module of its own."""
        self._memory = SharedMemory.of_copy(self, module)
        self._begin(module)


# The types of leaves, the most frequent first.
_LEAVES = (chainer.Variable, *chainer.get_array_types())


def _is_leaf(value: Any) -> bool:
    return isinstance(value, _LEAVES)


def _may_be_chained(layer: Any) -> bool:
    """Returns whether a layer is called as `TorchLayer` does, without hooks."""
    return type(layer) is TorchLayer and not layer._n_local_link_hooks


def share_before(module: nn.Module, layer: TorchLayer) -> None:
    """Makes a layer share memory before the state of a module is read or loaded.

    Args:
        module (torch.nn.Module): The module of the layer, or one that has parts of it.
        layer (TorchLayer): The layer.
    """
    # Copies of traced modules lose their hooks.
    if _before_state_dict not in module._state_dict_pre_hooks.values():
        module.register_state_dict_pre_hook(_before_state_dict)
        module.register_load_state_dict_pre_hook(_before_loading)
        module.register_load_state_dict_post_hook(_after_loading)
    _layers.setdefault(module, weakref.WeakSet()).add(layer)


def _before_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    _share_of(module)


def _before_loading(module: nn.Module, *args: Any) -> None:
    _share_of(module)


def _after_loading(module: nn.Module, keys: Any) -> None:
    _share_of(module)


def _share_of(module: nn.Module) -> None:
    for layer in _layers.get(module, ()):
        layer.share()
