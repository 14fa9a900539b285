"""The float32 masters of parameters, in flat buffers or on their way there.

::

    before the first update   none: a parameter's own value is its master
    from then on              in the buffers, and changed there by each update
    loaded, or changed        waiting for the next update, which makes buffers of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from mixed_precision.flat import FlatBuffers
from mixed_precision.parameters import check_parameter, has_master

NamedParameters = Sequence[tuple[str, chainer.Parameter]]


class Masters:
    """The masters of an optimizer's parameters.

    Attributes:
        buffers (FlatBuffers): Buffers of the last update; ``None`` if the next update
            makes new ones.

    Example:
        >>> half = chainer.Parameter(np.ones(2, np.float16))
        >>> masters = Masters()
        >>> masters.by_path()
        {}
        >>> buffers = masters.laid_out([("/W", half)])
        >>> masters.by_path()["/W"]
        array([1., 1.], dtype=float32)
        >>> masters.laid_out([("/W", half)]) is buffers
        True
        >>> masters.change(lambda path, master: master * np.float32(1.0001))
        >>> masters.by_path()["/W"]
        array([1.0001, 1.0001], dtype=float32)
    """

    def __init__(self) -> None:
        self.buffers: FlatBuffers | None = None
        self._waiting: Mapping[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy has: the masters, which wait for its first update."""
        return {"buffers": None, "_waiting": self.by_path()}

    def by_path(self) -> dict[str, Any]:
        """Returns by path the masters that the next update continues from."""
        in_buffers = {} if self.buffers is None else self.buffers.masters()
        return {**in_buffers, **self._waiting}

    def change(self, change: Callable[[str, Any], Any]) -> None:
        """Replaces the masters; the new ones wait for the next update.

        Args:
            change: Takes a path and the master, and returns the new master.
        """
        self._waiting = {k: change(k, each) for k, each in self.by_path().items()}
        self.buffers = None

    def laid_out(self, parameters: NamedParameters) -> FlatBuffers:
        """Returns buffers of parameters, with their masters.

        The buffers of the last update are returned if they still hold the same
        parameters.

        Args:
            parameters: Initialized parameters with their paths, each parameter once.

        Raises:
            TypeError: If a parameter cannot be trained.
        """
        if self.buffers is None or not self.buffers.holds(parameters):
            for path, param in parameters:
                check_parameter(path, param)
            self.buffers = FlatBuffers(parameters, self.by_path())
            self._waiting = {}
        return self.buffers

    def serialize(self, serializer: Any, parameters: NamedParameters) -> None:
        """Reads or writes the masters, under the paths of the parameters.

        Args:
            serializer: A serializer of Chainer.
            parameters: Parameters with their paths, also those without a shape.

        Raises:
            ValueError: If a master that is to be written is of another shape than its
                parameter.
        """
        masters, found = self.by_path(), {}
        is_read = isinstance(serializer, chainer.Deserializer)
        for path, param in parameters:
            if not has_master(param):
                continue
            master = masters.get(path)
            if master is not None and master.shape != param.shape:
                if not is_read:
                    raise ValueError(
                        f"the master of {path} is {master.shape}, but the parameter is"
                        f" {param.shape}: the model was changed in part. Make it"
                        f" and its optimizer again, and load a snapshot"
                    )
                master = None
            if master is None and param.array is not None:
                with chainer.using_device(param.device):
                    master = param.array.astype(np.float32)
            master = serializer[path]("master", master)
            if master is not None:
                found[path] = master
        if is_read:
            self.buffers, self._waiting = None, found
