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
        buffers (FlatBuffers): Those of the last update; ``None`` where the next one
            is to make some.

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

    def by_path(self) -> dict[str, Any]:
        """Returns the masters that the next update goes on from, by path."""
        in_buffers = {} if self.buffers is None else self.buffers.masters()
        return {**in_buffers, **self._waiting}

    def change(self, change: Callable[[str, Any], Any]) -> None:
        """Replaces the masters; they wait for the next update.

        Args:
            change: Takes a path and the master, and returns the one to go on with.
        """
        self._waiting = {k: change(k, each) for k, each in self.by_path().items()}
        self.buffers = None

    def laid_out(self, parameters: NamedParameters) -> FlatBuffers:
        """Returns buffers of parameters, with their masters.

        Those of the last update are returned if they hold the same parameters still.

        Args:
            parameters: With their paths, initialized, each once.

        Raises:
            TypeError: If one cannot be trained.
        """
        if self.buffers is None or not self.buffers.holds(parameters):
            for path, param in parameters:
                check_parameter(path, param)
            self.buffers = FlatBuffers(parameters, self.by_path())
            self._waiting = {}
        return self.buffers

    def serialize(self, serializer: Any, parameters: NamedParameters) -> None:
        """Reads or writes them, under the paths of the parameters.

        Args:
            serializer: Of Chainer.
            parameters: With their paths, those without a shape as well.

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
                        f" {param.shape}: the model was changed in part. Make it and"
                        f" its optimizer anew, and load a snapshot"
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
