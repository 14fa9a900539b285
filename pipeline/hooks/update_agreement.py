"""Compares the ranks' optimizers where they must do the same.

::

    number   what                         compared                       when
    0        clipping by the norm of      the hooks' thresholds          every step
             all gradients
    1        the optimizers               class, hyperparameters         every step
    2, ...   the copies of a parameter    update rule, rates, hooks      every step
             that several stages share    the weights' bits              now and then

Every rank adds a number for each to the message that compares the calls, so no rank
waits. Only if some numbers differ do the ranks exchange texts, for the error. Unequal
optimizers get a warning instead, because they may be intended.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible import Divisible
from divisible.communication.errors import DisagreementError, in_words
from divisible.optimizer_hooks import Hooks
from divisible.optimizer_wrapper import innermost
from divisible.user_warnings import warn_user
from pipeline.calls.call_agreement import UNSAID
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import SharedParameter
from pipeline.hooks.global_hooks import GlobalHooks
from pipeline.hooks.optimizers import KNOWN_HOOKS

_HOST = chainer.get_device("@numpy")
# The weights' bits are compared in the first steps, and later at this interval, because
# the comparison reads all weights several times.
_FIRST_STEPS, _INTERVAL = 4, 64
# Numbers of the values that are compared.
_CLIPPINGS, _OPTIMIZERS, _FIRST_COPIES = range(3)


class _Copy(NamedTuple):
    """A copy of a shared parameter, described for an error.

    Attributes:
        stage: Number of the stage.
        rank: Number of the rank.
        update: Update rule, rates and hooks of the copy, as a text.
        hooks: Names of all hooks that are called for the copy.
    """

    stage: int
    rank: int
    update: str
    hooks: list[str]


class UpdateAgreement:
    """Compares hooks, and the updates of tied parameters, while a step runs.

    Args:
        shared: Parameters of which several stages have a copy.
        stages: This rank's stages, by number.
        hooks (GlobalHooks): Hooks of this rank's optimizers, as far as they are known.
        ranks (Ranks): All ranks of the pipeline.
    """

    def __init__(
        self,
        shared: Sequence[SharedParameter],
        stages: Mapping[int, Divisible],
        hooks: GlobalHooks,
        ranks: Ranks,
    ) -> None:
        #: Hooks of this rank's optimizers.
        self.hooks = hooks
        self._shared, self._ranks = shared, ranks
        params = {number: dict(part.namedparams()) for number, part in stages.items()}
        self._copies = [
            {number: params[number][path] for number in numbers if number in params}
            for path, numbers in shared
        ]
        ranks.calls.n_alike = _FIRST_COPIES + len(shared)
        self._n_steps, self._has_warned = 0, False
        #: Whether updates need the norm of all gradients of the model.
        self.clips = False
        self._params = [p for part in stages.values() for p in part.params()]
        # Number of updates of each parameter before the last step.
        self._counts: list[int] | None = None
        # Numbers of a rank that has neither a given optimizer nor copies; None if there
        # is no other rank.
        self._no_words: np.ndarray | None = None
        if ranks.world.size > 1:
            self._no_words = np.full((2, _FIRST_COPIES), UNSAID)
            self._no_words[:, _CLIPPINGS] = _extremes([_checksum([])])

    def numbers(self, step: int) -> np.ndarray | None:
        """Returns this step's numbers to compare, for :meth:`.CallAgreement.start`.

        Args:
            step (int): Number of minibatches before this one.

        Raises:
            ValueError: If optimizers of this rank's stages clip differently.
        """
        hooks = self.hooks
        self._counts = self._count()
        if hooks.given or self._shared or not hooks.has_searched:
            hooks.begin(step)
        if not (hooks.given or self._shared):
            return self._no_words
        self._n_steps += 1
        n = self._n_steps
        with_bits = n <= _FIRST_STEPS or n % _INTERVAL == 0
        alike = np.full((2, _FIRST_COPIES + len(self._shared)), UNSAID)
        clippings = self.hooks.clippings
        self.clips = bool(clippings)
        alike[:, _CLIPPINGS] = _extremes([_checksum(clippings)])
        optimizers = self._optimizers()
        if optimizers:
            alike[:, _OPTIMIZERS] = _extremes([_checksum(optimizers)])
        for i, copies in enumerate(self._copies, start=_FIRST_COPIES):
            for param in copies.values():
                for hook in _hooks_of_rule(param):
                    self.hooks.key_noise(hook)
            if copies:
                alike[:, i] = _extremes(
                    _checksum((self._update(p), _bits(p) if with_bits else 0))
                    for p in copies.values()
                )
        return alike

    @property
    def are_awaited(self) -> bool:
        """Whether gradients of the last step have not been used for an update yet."""
        return bool(self._counts) and self._counts == self._count()

    def forget_step(self) -> None:
        """Forgets the last step, whose gradients no update will use."""
        self._counts = None

    def _count(self) -> list[int]:
        return [
            # The step itself may have updated a streamed parameter.
            param.update_rule.t - getattr(param, "is_updated", False)
            for param in self._params
            if param.update_rule is not None and param.update_rule.enabled
        ]

    def check(self) -> None:
        """Refuses values that differ; to be called when the call is finished.

        If optimizers differ, rank 0 warns once.

        Raises:
            DisagreementError: On every rank, with the values of all ranks.
        """
        ranks, unlike = self._ranks, self._ranks.calls.agreed.unlike
        purpose = "to say what they do"
        if _CLIPPINGS in unlike:
            self._refuse_hooks(ranks.all_gather(self.hooks.clippings, purpose))
        first = next((number for number in unlike if number >= _FIRST_COPIES), None)
        if first is None:
            if _OPTIMIZERS in unlike and not self._has_warned:
                self._has_warned = True
                said = ranks.all_gather(self._optimizers(), purpose)
                if ranks.is_chief:
                    _warn_of_optimizers(said)
            return
        mine = [
            _Copy(
                number,
                ranks.rank,
                self._update(param),
                [type(hook).__name__ for hook in self._hooks_of(param)],
            )
            for number, param in self._copies[first - _FIRST_COPIES].items()
        ]
        said = [copy for copies in ranks.all_gather(mine, purpose) for copy in copies]
        _refuse_copies(self._shared[first - _FIRST_COPIES].path, sorted(said))

    def close(self) -> None:
        """Frees what hooks need to agree; all ranks must call it."""
        self.hooks.close()

    def _refuse_hooks(self, clippings: Sequence[Sequence[str]]) -> None:
        words = [
            f"rank {rank} has {', '.join(hooks) or 'none'}"
            for rank, hooks in enumerate(clippings)
        ]
        raise DisagreementError(
            f"hooks that look at the whole model must be the same on all ranks, but"
            f" {'; '.join(words)}. Add the same hooks in the same order everywhere, and"
            f" give the optimizers to pipe.global_hooks(optimizer), or to"
            f" PipelineUpdater, on every rank"
        )

    def _optimizers(self) -> list[str]:
        """Describes this rank's optimizers, each kind once."""
        return sorted({_optimizer_in_words(each) for each in self.hooks.optimizers})

    def _hooks_of(self, param: chainer.Parameter) -> list[Any]:
        return [*self.hooks.for_each(param), *_hooks_of_rule(param)]

    def _update(self, param: chainer.Parameter) -> str:
        """Describes the update of a parameter, as far as it must be alike."""
        rule = param.update_rule
        if rule is None or not rule.enabled:
            return "nothing (it is frozen, or has no optimizer)"
        name = type(rule).__name__
        options = _words(rule.hyperparam.get_dict())
        hooks = [
            f" after {type(hook).__name__}({_words(vars(hook))})"
            for hook in self._hooks_of(param)
            if type(hook) in KNOWN_HOOKS
        ]
        in_fp32 = " in float32" if rule._use_fp32_update else ""
        return f"{name}({options}){in_fp32}{''.join(hooks)}, updated {rule.t} times"


def _optimizer_in_words(optimizer: Any) -> str:
    options = _words(optimizer.hyperparam.get_dict())
    return f"{type(innermost(optimizer)).__name__}({options})"


def _warn_of_optimizers(said: Sequence[Sequence[str]]) -> None:
    """Warns that optimizers differ, given each rank's descriptions."""
    ranks_of: dict[str, list[int]] = {}
    for rank, optimizers in enumerate(said):
        if optimizers:
            ranks_of.setdefault(" and ".join(optimizers), []).append(rank)
    words = [f"{in_words(ranks)} by {text}" for text, ranks in ranks_of.items()]
    warn_user(
        f"the ranks do not update their layers alike: {'; '.join(words)}. A serial"
        f" script has one optimizer for all layers: make the same one on every rank,"
        f" and give extensions that change a rate to the trainer of every rank",
    )


def _refuse_copies(path: str, copies: Sequence[_Copy]) -> None:
    places = [f"stage {copy.stage} (rank {copy.rank})" for copy in copies]
    if len({copy.update for copy in copies}) > 1:
        words = [f"{where} by {copy.update}" for where, copy in zip(places, copies)]
        raise DisagreementError(
            f"{path} is one parameter with a copy in several stages, but they are not"
            f" updated alike: in {'; in '.join(words)}. Give all copies the same"
            f" optimizer, rates and hooks, and freeze all of them or none"
        )
    hooks = sorted({name for copy in copies for name in copy.hooks})
    raise DisagreementError(
        f"the copies of {path} in {', '.join(places)} are one parameter, but have"
        f" different weights: something changed them on one rank only. Set weights"
        f" before the Pipeline is made, which gives all copies the first one's. On a"
        f" Grid give create_multi_node_optimizer pipeline=pipe. Of hooks,"
        f" pipe.global_hooks(optimizer) on every rank makes GradientClipping and"
        f" GradientNoise treat them alike; others, and update rules, must not draw"
        f" random numbers of their own, nor look at other parameters (here:"
        f" {', '.join(hooks) or 'no hooks known'}). A new Pipeline begins with equal"
        f" copies again"
    )


def _hooks_of_rule(param: chainer.Parameter) -> list[Any]:
    rule = param.update_rule
    return [] if rule is None else [*chain(*Hooks.of(rule))]


def _words(options: Mapping[str, Any]) -> str:
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in sorted(options.items())
    }
    return ", ".join(
        f"{name}={value}"
        for name, value in plain.items()
        if isinstance(value, (bool, int, float, str))
    )


def _bits(param: chainer.Parameter) -> int:
    array = np.ascontiguousarray(_HOST.send(param.array))
    return zlib.crc32(array.view(np.uint8).reshape(-1))


def _checksum(value: Any) -> int:
    return zlib.crc32(repr(value).encode())


def _extremes(numbers: Iterable[int]) -> tuple[int, int]:
    numbers = list(numbers)
    return max(numbers), max(-number for number in numbers)
