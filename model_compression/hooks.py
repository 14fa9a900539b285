"""Hooks of optimizers that have a state for each parameter, by its path."""

from __future__ import annotations

import weakref
from typing import Any

import chainer

from divisible.optimizer_hooks import named_hooks


class HookOfParameters:
    """A hook that acts after each update, on each parameter for itself.

    The hook acts on float32 masters too, and works with any cut of a model. The states
    that ``state_of(path, param)`` returns go into a pipeline's snapshots, beside the
    state of the parameter's update rule, and move with layers.
    """

    timing = "post"
    call_for_each_param = True

    name: str

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._targets: list[chainer.Link] = []
        self._paths: dict[int, tuple[Any, str]] = {}

    def add_to(self, optimizer: Any) -> None:
        """Adds the hook to an optimizer.

        Args:
            optimizer (chainer.Optimizer): Optimizer that is set up.

        Raises:
            ValueError: If the optimizer has such a hook.
        """
        self.check_free(optimizer)
        optimizer.add_hook(self)
        self._optimizers.append(optimizer)
        self._targets.append(optimizer.target)

    def check_free(self, optimizer: Any) -> None:
        """Refuses an optimizer that has a hook of this kind.

        Raises:
            ValueError: If the optimizer has such a hook, which would change the same
                parameters.
        """
        if self.name in dict(named_hooks(optimizer)):
            raise ValueError(
                "the optimizer follows another compression plan already: give the rules"
                " of both in one CompressionPlan, or set the optimizer up again"
            )

    def check_added(self) -> None:
        """Refuses an optimizer that does not call the hook any more.

        Raises:
            RuntimeError: If an optimizer was set up again, which removes all hooks.
        """
        for each in self._optimizers:
            if dict(named_hooks(each)).get(self.name) is not self:
                raise RuntimeError(
                    "the optimizer was set up again and forgot what is pruned and"
                    " quantized: make Compress(...) after optimizer.setup(model)"
                )

    @property
    def paths(self) -> set[str]:
        """The paths of the parameters that the hook may change."""
        raise NotImplementedError

    def params(self) -> dict[str, list[chainer.Parameter]]:
        """Returns these parameters of this rank, with all equal copies, by path."""
        found: dict[str, dict[int, chainer.Parameter]] = {}
        for target in self._targets:
            for path, param in target.namedparams():
                if path in self.paths:
                    found.setdefault(path, {})[id(param)] = param
        return {path: list(params.values()) for path, params in found.items()}

    def path_of(self, param: chainer.Parameter) -> str | None:
        """Returns the path of a parameter of the targets."""
        known, path = self._paths.get(id(param), (None, None))
        if known is None or known() is not param:
            # Layers may have moved.
            self._paths = {
                id(each): (weakref.ref(each), path)
                for target in self._targets
                for path, each in target.namedparams()
            }
            _, path = self._paths.get(id(param), (None, None))
        return path

    def serialize_states(self, serializer: Any) -> None:
        """Reads or writes the states, for a trainer's own snapshot."""
        for path, params in self.params().items():
            self.state_of(path, params[0]).serialize(serializer[path.strip("/")])
