"""The state of optimizers that replicas must have in common, as checksums.

A snapshot has all that the next updates depend on. So the compared values are those
that would be saved: numbers of updates, states of update rules, master weights and loss
scales. They include the means that double buffering applies next, and states of hooks,
such as masks.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Union

import chainer
import numpy as np

from data_parallel.arrays import HOST
from data_parallel.residuals import RESIDUAL_KEYS
from divisible.communication.errors import in_words
from divisible.optimizer_hooks import named_hooks

#: The text of one number; the checksum of an array.
Digest = Union[str, int]
# Residuals of error feedback differ between replicas. Epochs change no update, and
# differ between shards of different lengths.
_OWN = tuple(f"exchange/{key}" for key in RESIDUAL_KEYS)
# Elements of an array that are read together, because some arrays are on disk.
_ELEMENTS = 2**20


class Digests(chainer.Serializer):
    """A serializer that keeps a digest of each value instead of the value.

    Args:
        path (str): Path of what it writes, up to a slash.
        found: Dictionary for the digests, by path.

    Attributes:
        found (dict): The dictionary of digests.

    Example:
        >>> digests = Digests()
        >>> digests["/0/W"]("t", 3)
        3
        >>> digests.found
        {'0/W/t': '3'}
    """

    def __init__(self, path: str = "", found: dict[str, Digest] | None = None) -> None:
        self._path = path
        self.found: dict[str, Digest] = {} if found is None else found

    def __getitem__(self, key: str) -> Digests:
        return Digests(f"{self._path}{key.strip('/')}/", self.found)

    def __call__(self, key: str, value: Any) -> Any:
        """Stores the digest of a value, and returns the value."""
        path = self._path + key.lstrip("/")
        if value is not None and not path.endswith(_OWN) and path != "epoch":
            self.found[path] = _digest(value)
        return value


def digests_of(
    optimizer: Any, serialize: Callable[[Any], None]
) -> Mapping[str, Digest]:
    """Returns the digests of all that replicas must have in common, by path.

    Args:
        optimizer: Optimizer, set up with the model.
        serialize: Writes the state of the optimizer and of the exchange.
    """
    digests = Digests()
    serialize(digests)
    for name, hook in _own_states(named_hooks(optimizer)):
        hook.serialize(digests["hooks"][name])
    for path, param in optimizer.target.namedparams(include_uninit=False):
        rule, below = param.update_rule, digests[path]
        master = getattr(rule, "_fp32_param", None)
        if master is not None:
            below("fp32_param", master.array)
        for name, hook in _own_states(named_hooks(rule)):
            hook.serialize(below["hooks"][name])
        for name, hook in named_hooks(optimizer):
            if hasattr(hook, "state_of"):
                kept = hook.state_of(path, param)
                if kept is not None:
                    kept.serialize(below["hooks"][name])
    return digests.found


def differing_states(
    said: Sequence[Mapping[str, Digest]], left_out: Iterable[str] = ()
) -> list[str]:
    """Returns the paths at which ranks differ, the shortest first.

    Args:
        said: Digests of each rank.
        left_out: Paths of parameters whose own states do not count.

    Example:
        >>> differing_states([{"t": "3", "W/v": 7}, {"t": "0", "W/v": 8}], ["/W"])
        ['t']
    """
    below = tuple(f"{path.strip('/')}/" for path in left_out)
    found = [
        path
        for path in {path for theirs in said for path in theirs}
        if len({theirs.get(path) for theirs in said}) > 1 and not path.startswith(below)
    ]
    return sorted(found, key=lambda path: (path.count("/"), path))


def difference_in_words(said: Sequence[Mapping[str, Digest]], path: str) -> str:
    """Returns text on what the ranks have at a path at which they differ.

    Args:
        said: Digests of each rank.
        path: Path at which they differ.

    Example:
        >>> difference_in_words([{"t": "3"}, {"t": "0"}, {}], "t")
        't is 3 on rank 0, but 0 on rank 1'
        >>> difference_in_words([{"W/v": 5}, {"W/v": 6}, {}], "W/v")
        'W/v on ranks 1 and 2 is not that of rank 0'
    """
    first = said[0].get(path)
    others = [rank for rank, theirs in enumerate(said) if theirs.get(path) != first]
    second = said[others[0]].get(path)
    if isinstance(first, str) and isinstance(second, str):
        return f"{path} is {first} on rank 0, but {second} on rank {others[0]}"
    return f"{path} on {in_words(others)} is not that of rank 0"


def _own_states(hooks: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, hook) for name, hook in hooks if hasattr(hook, "serialize")]


def _digest(value: Any) -> Digest:
    array = np.asarray(HOST.send(value) if hasattr(value, "dtype") else value)
    if array.dtype == object:
        return zlib.crc32(pickle.dumps(value))
    if array.ndim == 0 and array.dtype.kind in "biuf":
        return repr(array.item())
    checksum = zlib.crc32(f"{array.shape} {array.dtype.str}".encode())
    flat = array.reshape(-1)
    for start in range(0, flat.size, _ELEMENTS):
        checksum = zlib.crc32(flat[start : start + _ELEMENTS].tobytes(), checksum)
    return checksum
