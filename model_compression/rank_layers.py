"""The layers of a model with weights, of which a rank may have only some.

::

    rank 0    stage of /0 and /2    /0/W  /2/W            known on both ranks:
    rank 1    stage of /4                       /4/W      /0  /2  /4, kinds, bytes
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import chainer
import numpy as np

from model_compression.channels import channels_of
from model_compression.layer_lines import notes
from model_compression.plan import CompressionPlan
from model_compression.rules import Prune
from model_compression.selection import Weighted, together, weighted_layers, weights_of


class RankLayers:
    """The weights of this rank, and the sizes of the layers of all ranks.

    Args:
        links: The model, or the stages of this rank.
        gather: Returns a list of the values that all ranks give.

    Attributes:
        known (dict): The layers of all ranks, by path.
        sizes (dict): Bytes of the weights of each layer, by path.

    Example:
        >>> import chainer.links as L
        >>> model = chainer.Sequential(L.Linear(4, 3), L.Linear(3, 2))
        >>> RankLayers([model], lambda value: [value]).sizes
        {'/0': 48, '/1': 24}
    """

    def __init__(
        self, links: Sequence[chainer.Link], gather: Callable[[Any], list]
    ) -> None:
        self._links, self._gather = list(links), gather
        self._params: dict[str, dict[int, chainer.Parameter]] = {}
        for link in links:
            for path, param in link.namedparams():
                # Stages of one rank may have copies of a tied parameter.
                self._params.setdefault(path, {})[id(param)] = param
        own = together(weighted_layers(link) for link in links)
        n_bytes = {
            path: each.array.nbytes
            for path, params in self._params.items()
            for each in params.values()
            if each.array is not None
        }
        said = gather((own, n_bytes))
        self.known: dict[str, Weighted] = together(layers for layers, _ in said)
        self._bytes = {path: n for _, theirs in said for path, n in theirs.items()}
        self.sizes = {
            layer: sum(self._bytes[path] for path in each.weights)
            for layer, each in self.known.items()
            if each.weights
        }

    def weights(self, layer: str) -> dict[str, list[chainer.Parameter]]:
        """Returns the weights of a layer that are on this rank, by path."""
        return {
            path: list(self._params[path].values())
            for path in self.known[layer].weights
            if path in self._params
        }

    def joined(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Returns numbers of all ranks by path; a call of all ranks."""
        said = self._gather(dict(numbers))
        return {path: n for theirs in said for path, n in theirs.items()}

    def groups(self) -> dict[str, list[str]]:
        """Returns the layers that share weights, by the first of each group.

        Example:
            >>> import chainer.links as L
            >>> from divisible import Divisible
            >>> model = Divisible(L.Linear(3, 3), L.Linear(3, 2), L.Linear(3, 3))
            >>> model.tie("/0/W", "/2/W")
            >>> RankLayers([model], lambda value: [value]).groups()
            {'/0': ['/0', '/2'], '/1': ['/1']}
        """
        found: dict[str, list[str]] = {}
        firsts: dict[str, str] = {}
        for layer in self.sizes:
            weights = self.known[layer].weights
            known = {firsts[path] for path in weights if path in firsts}
            # A layer may join groups that were apart.
            first, *others = sorted(known, key=[*found].index) or [layer]
            members = found.setdefault(first, [])
            for other in others:
                members += found.pop(other)
            members.append(layer)
            for path in (p for each in members for p in self.known[each].weights):
                firsts[path] = first
        return found

    def bytes_under(self, plan: CompressionPlan) -> dict[str, float]:
        """Returns the bytes of each layer's weights under a plan; a call of all ranks.

        Under a rule that prunes, only elements that are not zero count. Under one that
        quantizes weights, an element has its bits.

        Args:
            plan: The plan, whose steps have been taken.
        """
        pruned, bits = set(), {}
        for rule, layers in zip(plan.rules, plan.layers_of_rules(self.known)):
            for path in weights_of(layers, self.known):
                if isinstance(rule, Prune):
                    pruned.add(path)
                elif "weight" in rule.targets:
                    bits[path] = rule.bits
        here = {}
        for path in self._params.keys() & (pruned | bits.keys()):
            array = next(iter(self._params[path].values())).array
            n = np.count_nonzero(_on_host(array)) if path in pruned else array.size
            here[path] = float(n * bits.get(path, 8 * array.itemsize) / 8)
        changed = {**self._bytes, **self.joined(here)}
        return {
            layer: float(sum(changed[path] for path in self.known[layer].weights))
            for layer in self.sizes
        }

    def shrinkable(self) -> list[str]:
        """Returns the layers whose channels can be removed; a call of all ranks."""
        here = {k: v for link in self._links for k, v in notes(link).items()}
        said = self._gather(here)
        known = {place: note for theirs in said for place, note in theirs.items()}
        found = []
        for layer in self.sizes:
            with contextlib.suppress(ValueError):
                for weight in self.known[layer].weights:
                    channels_of(weight, known, layer, self.known)
                found.append(layer)
        return found

    def seconds_of(self, run: Callable[[], Any]) -> dict[str, float]:
        """Returns the seconds of each layer's calls in a run; a call of all ranks.

        Args:
            run: Function that calls the layers.
        """
        with _Times() as times:
            run()
        found = {
            path: times.seconds.get(id(each), 0.0)
            for link in self._links
            for path, each in link.namedlinks()
            if path in self.sizes
        }
        return self.joined(found)

    def checksum(self) -> int:
        """Returns a number that differs for other parameters; a call of all ranks."""
        here = {}
        for path, params in self._params.items():
            array = next(iter(params.values())).array
            if array is not None:
                bits = np.ascontiguousarray(_on_host(array)).reshape(-1).view(np.uint8)
                here[path] = zlib.crc32(bits)
        return _joined(self.joined(here).items())


def _on_host(array: Any) -> np.ndarray:
    return chainer.get_device("@numpy").send(array)


def _joined(checksums: Iterable[tuple[str, float]]) -> int:
    found = 0
    for path, number in sorted(checksums):
        found = zlib.crc32(f"{path} {number}".encode(), found)
    return found


class _Times(chainer.LinkHook):
    """Adds up the seconds of each link's calls.

    Attributes:
        seconds: Seconds by the id of the link.
    """

    name = "compression_times"

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self._begun: list[float] = []

    def forward_preprocess(self, args: Any) -> None:
        """Begins a call."""
        self._begun.append(time.perf_counter())

    def forward_postprocess(self, args: Any) -> None:
        """Ends a call."""
        seconds = time.perf_counter() - self._begun.pop()
        key = id(args.link)
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
