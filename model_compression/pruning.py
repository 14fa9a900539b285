"""Steps of pruning, on the parameters that a rank has."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from model_compression.channels import Channels, channels_of, means_that_shift
from model_compression.layer_lines import Note, Place, notes
from model_compression.masks import Masks
from model_compression.rules import Prune
from model_compression.scores import lowest, score, spread, sums
from model_compression.selection import Weighted, check_rows, weights_of
from model_compression.shrinking import (
    Assignment,
    Left,
    joined,
    make_room,
    n_channels,
    other_size,
    parts_left,
    taking_away,
    taking_from_masters,
)

#: Returns a list of the values that all ranks give.
Gather = Callable[[Any], list]
_Params = Mapping[str, Sequence[chainer.Parameter]]


class Gone(NamedTuple):
    """Channels of a layer that a rule has pruned, and that may be removed.

    Attributes:
        channels: All channels that the layer outputs.
        kept: Numbers of the channels that stay, ascending.
        n: Number of channels that go.
    """

    channels: Channels
    kept: np.ndarray
    n: int


class Pruner:
    """The pruning rules of a plan, and their progress.

    Args:
        rules: Rules by their number in the plan.
        optimizers: Optimizers of this rank, set up.
        goes_back (bool): Whether a step may be taken back.

    Attributes:
        channels: Channels that rules remove, by the path of their weight.
    """

    def __init__(
        self, rules: Mapping[int, Prune], optimizers: Sequence[Any], goes_back: bool
    ) -> None:
        self._rules, self._targets = dict(rules), [each.target for each in optimizers]
        self._optimizers = list(optimizers)
        self._masks = Masks(goes_back, self._fit, watches=bool(self.watches(rules)))
        # Columns of quantized weights that read pruned channels: their values have no
        # effect on outputs, but would have one on scales and codebooks.
        self._unread = Masks(goes_back, name="Unread")
        self._weights: dict[int, list[str]] = {}
        self.channels: dict[str, Channels] = {}
        # The shapes of all ranks' weights now, and their sizes before channels were
        # removed.
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[str, int] = {}
        for each in optimizers if rules else []:
            self._masks.check_free(each)

    @property
    def masks(self) -> Masks:
        """The pruned elements."""
        return self._masks

    @property
    def follows_channels(self) -> bool:
        """Whether the layers of all ranks must be known."""
        return any(rule.granularity == "channel" for rule in self._rules.values())

    def words(self) -> dict[Place, Note]:
        """Returns the descriptions of this rank's layers that other ranks need."""
        if not self.follows_channels:
            return {}
        return {k: v for target in self._targets for k, v in notes(target).items()}

    def choose(
        self,
        chosen: Mapping[int, Sequence[str]],
        layers: Mapping[str, Weighted],
        known: Mapping[Place, Note],
        quantized: Collection[str],
    ) -> None:
        """Records the layers that the rules name.

        Args:
            chosen: Paths of the layers, by rule.
            layers: All known layers.
            known: Descriptions of layers of all ranks together.
            quantized: Paths of the weights that are quantized, or will be.

        Raises:
            ValueError: If channels are needed where they cannot be removed.
        """
        for number, rule in self._rules.items():
            check_rows(chosen[number], layers, rule.granularity, str(rule))
            weights = weights_of(chosen[number], layers)
            self._weights[number] = list(weights)
            for path, shape in weights.items():
                self._shapes[path] = shape
                self._sizes.setdefault(path, int(np.prod(shape)))
                if rule.granularity == "channel":
                    self.channels[path] = channels_of(path, known, str(rule), layers)
        watched: dict[str, Any] = {}
        for number, rule in self._rules.items():
            noted = rule.granularity if rule.method == "taylor" else None
            watched.update(dict.fromkeys(self._weights[number], noted))
        for channels in self.channels.values():
            watched.update(dict.fromkeys(channels.parameters))
        self._masks.select(watched)
        readers = {channels.reader for channels in self.channels.values()}
        self._unread.select(dict.fromkeys(readers & {*quantized}))

    def add_hooks(self) -> None:
        """Adds the hooks that keep pruned elements at zero to the optimizers."""
        for each in self._optimizers if self._rules else []:
            self._masks.add_to(each)
            if self._unread.paths:
                self._unread.add_to(each)

    def watches(self, numbers: Iterable[int]) -> list[int]:
        """Returns the rules that need the effects of weights on the loss."""
        return [n for n in numbers if self._rules[n].method == "taylor"]

    def has_effects(self, number: int) -> bool:
        """Returns whether effects for a rule were recorded since its last step."""
        params = self._masks.params()
        return any(
            self._masks.state_of(path, params[path][0]).n_minibatches
            for path in params.keys() & {*self._weights[number]}
        )

    def check_usable(self) -> None:
        """Refuses a model that was changed in part, or whose hooks are gone.

        Raises:
            RuntimeError: If the model was changed in part, or an optimizer was set up
                again.
        """
        self._masks.check_usable()
        self._masks.check_added()
        self._unread.check_added()

    def check_whole(self) -> None:
        """Refuses a model that was changed in part.

        Raises:
            RuntimeError: If the model was changed in part.
        """
        self._masks.check_usable()

    def refuse(self, refusal: str | None) -> None:
        """Refuses each use of the model from now on.

        Args:
            refusal: Cause and cure; ``None`` to allow the use again.
        """
        self._masks.refusal = refusal

    def take(self, degrees: Mapping[int, float], gather: Gather) -> None:
        """Prunes up to a degree; a call of all ranks where channels are followed.

        Args:
            degrees: Part to be pruned, by rule.
            gather: Returns a list of the values that all ranks give.
        """
        params = self._masks.params()
        rows: dict[str, np.ndarray] = {}
        for number, degree in degrees.items():
            rows.update(self._prune(number, degree, params))
        if any(self._rules[n].granularity == "channel" for n in degrees):
            self._prune_channels(rows, params, gather)

    def _prune(
        self, number: int, degree: float, params: _Params
    ) -> dict[str, np.ndarray]:
        """Prunes weights of this rank, and returns which of their channels go."""
        rule = self._rules[number]
        host = chainer.get_device("@numpy")
        rows = {}
        for path in params.keys() & {*self._weights[number]}:
            shape = params[path][0].shape
            mask = self._masks.state_of(path, params[path][0])
            pruned = sums(host.send(mask.pruned), rule.granularity)
            is_pruned = pruned == sums(np.ones(shape, np.float32), rule.granularity)
            if rule.method == "taylor":
                scores = mask.scores()
            else:
                weight = host.send(params[path][0].array)
                scores = score(rule.method, weight, rule.granularity)
            more = lowest(scores, is_pruned, degree)
            mask.prune(spread(more, shape, rule.granularity), params[path])
            if path in self.channels:
                rows[path] = more[:, 0]
        return rows

    def _prune_channels(
        self, rows: Mapping[str, np.ndarray], params: _Params, gather: Gather
    ) -> None:
        """Prunes the parameters of channels, some of which other ranks have chosen."""
        chosen = {k: v for theirs in gather(rows) for k, v in theirs.items()}
        reading = self._unread.params()
        _, links = self._own()
        for weight, more in chosen.items():
            channels = self.channels[weight]
            for path in channels.parameters:
                if path in params:
                    mask = self._masks.state_of(path, params[path][0])
                    mask.prune(more, params[path])
            same = reading.get(channels.reader)
            if same is not None:
                unread = np.zeros(same[0].shape, bool)
                unread[:, more.repeat(channels.n_each)] = True
                self._unread.state_of(channels.reader, same[0]).prune(unread, same)
            for link in means_that_shift(channels, links):
                # Minibatches keep the mean of zeros at zero.
                with chainer.using_device(link.device):
                    link.avg_mean[link.device.send(more)] = 0

    def take_back(self, numbers: Iterable[int]) -> None:
        """Takes the last steps of rules back."""
        for number in numbers:
            paths, readers = [*self._weights[number]], []
            for weight in {*paths} & self.channels.keys():
                paths += self.channels[weight].parameters
                readers.append(self.channels[weight].reader)
            self._masks.take_back(paths)
            self._unread.take_back(readers)
        # An element that one rule restores may be pruned by another rule as well.
        self._masks.clear()
        self._unread.clear()

    # -- channels that go --------------------------------------------------------------

    def gone(self, numbers: Iterable[int], gather: Gather) -> list[Gone]:
        """Returns the channels that rules have pruned; a call of all ranks.

        Args:
            numbers: Numbers of the rules whose channels may go.
            gather: Returns a list of the values that all ranks give.

        Returns:
            The channels of each layer that loses some, the same on all ranks.
        """
        params, _ = self._own()
        mine = {}
        for weight in (w for n in numbers for w in self._weights[n]):
            if weight in self.channels and weight in params:
                pruned = self._masks.state_of(weight, params[weight][0]).pruned
                is_gone = pruned.reshape(len(pruned), -1).all(axis=1)
                mine[weight] = np.flatnonzero(
                    ~chainer.get_device("@numpy").send(is_gone)
                )
        chosen = {k: v for theirs in gather(mine) for k, v in theirs.items()}
        found = []
        for weight, kept in sorted(chosen.items()):
            n = self._shapes[weight][0] - len(kept)
            if n:
                found.append(Gone(self.channels[weight], kept, n))
        return found

    def taking_away(
        self, gone: Sequence[Gone], left: Mapping[str, Sequence[Left]]
    ) -> list[Assignment]:
        """Makes the remaining arrays of this rank; changes nothing yet.

        Args:
            gone: Channels to remove.
            left: Remaining parts of each parameter, by path.

        Returns:
            The assignments that replace the arrays.
        """
        params, links = self._own()
        removed = [(each.channels, each.kept) for each in gone]
        found = taking_away(removed, left, params, links)
        for each in self._optimizers:
            found += taking_from_masters(each, left)
        return [
            *found,
            *self._masks.taking_away(left),
            *self._unread.taking_away(left),
            functools.partial(self._note_sizes, left),
        ]

    def _note_sizes(self, left: Mapping[str, Sequence[Left]]) -> None:
        """Records the new sizes of weights of all ranks."""
        for path in left.keys() & self._shapes.keys():
            for part in left[path]:
                self._shapes[path] = part.shape_of(self._shapes[path])

    def _fit(self, shapes: Mapping[str, Sequence[int]]) -> Callable[[], None]:
        """Gives layers of this rank other sizes; see :meth:`.Masks.fit`."""
        params, links = self._own()
        touched = {
            path
            for channels in self.channels.values()
            for path in parts_left(channels, np.arange(1))
        }
        params = {
            path: params[path]
            for path in touched & params.keys()
            if params[path][0].is_initialized
        }
        here = {path: same[0].shape for path, same in params.items()}
        for channels in self.channels.values():
            for path in channels.normalizing:
                average = getattr(links.get(path), "avg_mean", None)
                if average is not None:
                    here[f"{path}/avg_mean"] = average.shape
        arrays = [(p, p.array, p.grad) for same in params.values() for p in same]
        attributes = [(link, dict(vars(link))) for link in links.values()]
        for channels in self.channels.values():
            n = n_channels(channels, shapes)
            if n is not None and n != n_channels(channels, here):
                make_room(channels, n, params, links)

        def set_back() -> None:
            for link, before in attributes:
                vars(link).update(before)
            for param, array, gradient in arrays:
                if param.array is not array:
                    param.cleargrad()
                    param.array, param.grad = array, gradient

        return set_back

    def prepare(self, model: chainer.Link) -> None:
        """Gives a model as it was built the present sizes of this one.

        Args:
            model: Undivided model. Its layers need not be made yet.
        """
        params = {path: [param] for path, param in model.namedparams()}
        links = dict(model.namedlinks())
        for weight, channels in self.channels.items():
            n = self._shapes[weight][0]
            if params[weight][0].shape[0] != n:
                make_room(channels, n, params, links)

    def _own(self) -> tuple[_Params, dict[str, chainer.Link]]:
        """Returns all parameters and links of this rank by their paths."""
        params: dict[str, dict[int, chainer.Parameter]] = {}
        links = {}
        for target in self._targets:
            links.update(target.namedlinks())
            for path, param in target.namedparams():
                params.setdefault(path, {})[id(param)] = param
        return {path: [*same.values()] for path, same in params.items()}, links

    def counts(self) -> dict[str, tuple[int, int]]:
        """Returns the number of zeros and the size of this rank's weights, by path.

        Removed elements count as zeros.
        """
        of_rules = {path for weights in self._weights.values() for path in weights}
        found = {}
        for path, same in self._masks.params().items():
            if path in of_rules:
                n_pruned = int(self._masks.state_of(path, same[0]).pruned.sum())
                size = self._sizes[path]
                found[path] = size - same[0].size + n_pruned, size
        return found

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the pruned elements."""
        self._masks.serialize_states(serializer["masks"])
        self._unread.serialize_states(serializer["unread"])

    def serialize_sizes(self, serializer: Any, may_differ: bool) -> None:
        """Reads or writes the numbers of channels on all ranks; may refuse others."""
        weights = sorted(self.channels)
        sizes = np.array([self._shapes[weight][0] for weight in weights])
        for weight, n in zip(weights, serializer("n_channels", sizes)):
            if n != (present := self._shapes[weight][0]):
                if not may_differ:
                    raise other_size(weight, n, present)
                left = parts_left(self.channels[weight], np.arange(n))
                self._note_sizes(joined([left]))
