"""Hooks for a whole model, on optimizers that each have a part of it.

``GradientClipping`` clips by the norm of all gradients. In a pipeline, an optimizer has
only the gradients of its stage. So the optimizers of all ranks, and of all stages of a
rank, call their hooks together and agree on the norm in between::

                     hooks before    norm       hooks after
    optimizer a      WeightDecay  ---.     .--> Lasso         then a updates,
    optimizer b      WeightDecay  ----+---+---> Lasso         and later b
    other ranks      WeightDecay  ---'     '--> Lasso
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from itertools import chain
from typing import Any

import chainer
from chainer.optimizer import _OptimizerHookable
from chainer.optimizer_hooks import GradientNoise

from divisible import Divisible, RandomKey
from divisible.communication.parameter_sums import Reduced
from divisible.number_lists import as_list
from divisible.optimizer_hooks import Hooks, clipping_rate, is_clipping, named_hooks
from divisible.unconfirmed_update import UnconfirmedUpdate
from divisible.user_warnings import warn_user
from mixed_precision import MixedPrecision
from pipeline.calls.ranks import Ranks
from pipeline.hooks.keyed_noise import KeyedNoise
from pipeline.hooks.late_confirmation import LateConfirmation, changes_gradients
from pipeline.hooks.model_norm import ModelNorm
from pipeline.hooks.optimizers import (
    OptimizerOfRank,
    find_optimizers,
    is_mixed,
    unique_params,
)
from pipeline.hooks.parameter_paths import ParameterPaths


class GlobalHooks:
    """The optimizers of a rank whose hooks treat the whole model.

    Optimizers in mixed precision agree on the norm on their own.

    Args:
        stages: This rank's stages, by number.
        loss_links: Links of the loss behind the last layer, by name.
        n_stages (int): Number of stages in the pipeline.
        seed (int): Seed for noise on gradients.
        ranks (Ranks): All ranks of the pipeline.

    Attributes:
        given (list): Optimizers passed to :meth:`add`.
        late (LateConfirmation or None): Confirms updates late; ``None`` if they wait.
        has_searched (bool): Whether no search for other optimizers is needed any more.
    """

    def __init__(
        self,
        stages: Mapping[int, Divisible],
        loss_links: Mapping[str, chainer.Link],
        n_stages: int,
        seed: int,
        ranks: Ranks,
    ) -> None:
        self._stages, self._n_stages = stages, n_stages
        self._key, self._ranks = RandomKey(seed, step=0), ranks
        self._paths = ParameterPaths(stages, loss_links)
        self._norm = ModelNorm(stages, self._paths, ranks)
        self.given: list[OptimizerOfRank] = []
        # Optimizers whose hooks were called together with those of another one.
        self._called: list[chainer.Optimizer] = []
        self.late: LateConfirmation | None = None
        # Optimizers in the order of their updates, while these are unconfirmed; and the
        # outcome of the reduction, while they are made again.
        self._unconfirmed: list[chainer.Optimizer] = []
        self._outcome: Reduced | None = None
        # With one stage, an optimizer has the whole model.
        self.has_searched = n_stages == 1
        # Names of the hooks that users have been warned about.
        self._warned: set[str] = set()

    def add(self, optimizers: Any) -> None:
        """Takes over the hooks of optimizers; an optimizer given before stays as it is.

        An optimizer takes the place of an earlier one with the same target.

        Args:
            optimizers (chainer.Optimizer or list): Optimizers that have been set up.

        Raises:
            TypeError: If an object is not an optimizer.
            ValueError: If an optimizer is not set up, or would skip steps on its own.
        """
        if self.late is not None:
            self.late.finish()
        for optimizer in as_list(optimizers):
            new = OptimizerOfRank.of(optimizer, self._stages.values())
            self.given = [
                old
                for old in self.given
                if old.optimizer is not new.optimizer and old.target is not new.target
            ]
            self.given.append(new)
            self._take_over(new.optimizer)

    def _take_over(self, optimizer: chainer.Optimizer) -> None:
        several = self._ranks.world.size > 1
        if several and optimizer._loss_scaling_is_dynamic:
            raise ValueError(
                f"the {type(optimizer).__name__} of rank {self._ranks.rank} has a"
                f" dynamic loss scale of its own, and would skip steps that other ranks"
                f" take: instead of loss_scaling(), use"
                f" MixedPrecision(optimizer, comm=comm)"
            )
        hookable = optimizer._hookable
        is_ours = isinstance(hookable, _CalledTogether) and hookable.hooks is self
        if not (is_ours or is_mixed(optimizer)):
            optimizer._hookable = _CalledTogether(optimizer, self)
        if isinstance(optimizer, MixedPrecision):
            optimizer.confirm_late(self.late)

    def begin(self, step: int) -> None:
        """Examines the hooks that are there now; to be called for each minibatch.

        Args:
            step (int): Number of minibatches before this one.

        Raises:
            ValueError: If optimizers of this rank's stages clip differently, or one
                would skip steps on its own.
        """
        self._called.clear()
        self._key = self._key._replace(step=step)
        self.given = [each for each in self.given if each.is_current]
        for i, each in enumerate(self.given):
            optimizer = each.optimizer
            if optimizer.target is not each.target:
                whole = each.wrapper or optimizer
                self.given[i] = OptimizerOfRank.of(whole, self._stages.values())
            # Another setup() has replaced the object for hooks.
            self._take_over(optimizer)
            for hook in chain(*Hooks.of(optimizer)):
                self.key_noise(hook)
        self._check_clippings()
        for each in self.given or self._others():
            self._warn_of_parts(each)

    def key_noise(self, hook: Any) -> None:
        """Makes the noise of a ``GradientNoise`` the same for every cut."""
        if isinstance(hook, GradientNoise):
            noise = hook.noise_func
            if isinstance(noise, KeyedNoise):
                noise = noise.noise_func
            hook.noise_func = KeyedNoise(noise, self._key, self._paths.of_rule)

    def _check_clippings(self) -> None:
        ours = self.optimizers
        for optimizer in ours:
            first, here = _clippings(ours[0]), _clippings(optimizer)
            if here != first:
                raise ValueError(
                    f"the optimizers of rank {self._ranks.rank} clip differently, by"
                    f" {', '.join(first) or 'nothing'} and by"
                    f" {', '.join(here) or 'nothing'}: give the optimizers of all"
                    f" stages the same hooks in the same order"
                )

    def _others(self) -> list[OptimizerOfRank]:
        """Returns, once, optimizers that have the stages but were not given."""
        if self.has_searched:
            return []
        stages = self._stages.values()
        params = [param for stage in stages for param in stage.params()]
        rules = [p.update_rule for p in params if p.update_rule is not None]
        # Before an optimizer is set up, there are no rules to find it by.
        self.has_searched = bool(rules)
        return [OptimizerOfRank.of(each, stages) for each in find_optimizers(rules)]

    def _warn_of_parts(self, each: OptimizerOfRank) -> None:
        """Warns once of each hook that treats only a part of the model."""
        for name, hook in named_hooks(each.optimizer):
            if getattr(hook, "call_for_each_param", False):
                continue
            is_agreed = is_clipping(hook) and (self.given or is_mixed(each.optimizer))
            whole = each.n_stages in (0, self._n_stages)
            if is_agreed or whole or name in self._warned:
                continue
            self._warned.add(name)
            if is_clipping(hook):
                cure = (
                    "call pipe.global_hooks(optimizer) on every rank, after setup, and"
                    " it sees all stages"
                )
            else:
                cure = (
                    "if it treats each parameter for itself, set its"
                    " call_for_each_param and let it take (rule, param); otherwise what"
                    " it does depends on the cut, and differs from serial training"
                )
            warn_user(
                f"the hook {name!r} of the optimizer on rank {self._ranks.rank} is"
                f" called for a whole model, but sees {each.n_stages} of its"
                f" {self._n_stages} stages: {cure}",
            )

    def for_each(self, param: chainer.Parameter) -> Iterator[Any]:
        """Yields the hooks that the given optimizers call for a single parameter."""
        for given in self.given:
            if any(each is param for each in given.target.params()):
                for hook in chain(*Hooks.of(given.optimizer)):
                    if getattr(hook, "call_for_each_param", False):
                        yield hook

    @property
    def clippings(self) -> list[str]:
        """Clippings of this rank, as texts; its stages' optimizers have the same."""
        ours = self.optimizers
        return _clippings(ours[0]) if ours else []

    @property
    def optimizers(self) -> list[chainer.Optimizer]:
        """The given optimizers of this rank's stages."""
        return [each.optimizer for each in self.given if each.n_stages]

    def call_before_update(self, optimizer: chainer.Optimizer) -> bool:
        """Calls the hooks before an update, if a hook treats the whole model.

        The hooks of the rank's other optimizers are called at the same time, before
        their own updates.

        Returns:
            Whether the hooks have been called.

        Raises:
            StallError: If another rank does not update in time.
        """
        if any(each is optimizer for each in self._called):
            self._called = [each for each in self._called if each is not optimizer]
            self._unconfirmed.append(optimizer)
            return True
        clippings = [hook for hook in Hooks.of(optimizer).before if is_clipping(hook)]
        given = self._together()
        is_given = any(each.optimizer is optimizer for each in given)
        is_alone = self._n_stages == len(given) == 1
        if not clippings or is_alone or not is_given:
            return False
        is_again = self._outcome is not None
        if self.late is not None and not is_again:
            self.late.finish()
        for each in given:
            # Hooks read gradients averaged over replicas; the optimizer that updates
            # first has averaged its own.
            if each.wrapper is not None and each.optimizer is not optimizer:
                each.wrapper.average_gradients()
        together = [each.optimizer for each in given]
        self._unconfirmed = [optimizer]
        with nullcontext() if is_again else self._ranks.calls.made("update"):
            self._call_together(together, clippings)
        self._called = [each for each in together if each is not optimizer]
        return True

    def _call_together(
        self, together: Sequence[chainer.Optimizer], clippings: Sequence[Any]
    ) -> None:
        """Calls hooks of several optimizers before each clipping, and after the last.

        Args:
            together: The optimizers, which have the same clippings.
            clippings: Their clippings, in order.
        """
        for each in together:
            if hasattr(each, "reallocate_cleared_grads"):
                each.reallocate_cleared_grads()
        if self._is_ahead():
            self.late.copies.take(together, changes_gradients(together))
        params = unique_params(together)
        parts = [_parts(each) for each in together]
        for i, clipping in enumerate([*clippings, None]):
            for each, hooks in zip(together, parts):
                for hook in hooks[i]:
                    each.call_hook(hook)
            if clipping is not None:
                _multiply(params, self._rate(clipping, params))

    def _is_ahead(self) -> bool:
        """Whether the updates that begin now do not wait for other ranks."""
        late = self.late
        return late is not None and late.is_wanted and self._outcome is None

    def _rate(self, hook: Any, params: list[chainer.Parameter]) -> Any:
        """Returns the factor by which a clipping multiplies gradients."""
        if self._outcome is not None:
            return clipping_rate(hook, self._norm.squared_of(self._outcome))
        if not self._is_ahead():
            rate = clipping_rate(hook, self._norm.squared(params))
            if self.late is not None:
                self.late.note(rate == 1)
            return rate
        # The threshold may change meanwhile.
        of_now, squared_of = copy(hook), self._norm.squared_of
        update = UnconfirmedUpdate(
            self._norm.begin(params),
            lambda outcome: clipping_rate(of_now, squared_of(outcome)) == 1,
            self._update_again,
        )
        self.late.begin(update)
        return 1.0

    def _update_again(self, outcome: Reduced) -> None:
        """Makes the updates since the last norm again, with its right value."""
        optimizers, self._unconfirmed = self._unconfirmed, []
        called, self._called, self._outcome = self._called, [], outcome
        try:
            for optimizer in optimizers:
                optimizer.update()
        finally:
            self._called, self._outcome = called, None

    def _together(self) -> list[OptimizerOfRank]:
        """Returns the optimizers that clip by one norm, the loss's too if alike."""
        wanted = self.clippings
        return [
            each
            for each in self.given
            if not is_mixed(each.optimizer)
            and (each.n_stages or _clippings(each.optimizer) == wanted)
        ]

    def forget_layers(self) -> None:
        """Drops the former parameters; to be called once the layers have changed."""
        self._paths.forget()
        self.has_searched = self._n_stages == 1

    def close(self) -> None:
        """Frees the communicator; all ranks must call it."""
        self._norm.close()


class _CalledTogether(_OptimizerHookable):
    """The hooks of an optimizer, in place of Chainer's own object for them.

    Attributes:
        hooks (GlobalHooks): Calls the hooks that treat the whole model.
    """

    def __init__(self, optimizer: chainer.Optimizer, hooks: GlobalHooks) -> None:
        super().__init__(optimizer)
        own = optimizer._hookable
        self._pre_update_hooks = own._pre_update_hooks
        self._post_update_hooks = own._post_update_hooks
        self.hooks = hooks

    def call_hooks(self, timing: str, args: tuple) -> None:
        """Calls the hooks before or after an update."""
        if timing == "pre" and self.hooks.call_before_update(self.optimizer):
            return
        super().call_hooks(timing, args)


def _clippings(optimizer: chainer.Optimizer) -> list[str]:
    where = ", in mixed precision" if is_mixed(optimizer) else ""
    return [
        f"GradientClipping({hook.threshold}{where})"
        for hook in Hooks.of(optimizer).before
        if is_clipping(hook)
    ]


def _parts(optimizer: chainer.Optimizer) -> list[list[Any]]:
    """Returns the hooks before an update, cut into lists at each clipping."""
    parts: list[list[Any]] = [[]]
    for hook in Hooks.of(optimizer).before:
        if is_clipping(hook):
            parts.append([])
        else:
            parts[-1].append(hook)
    return parts


def _multiply(params: Iterable[chainer.Parameter], rate: Any) -> None:
    if rate == 1:
        return
    for param in params:
        grad = param.grad
        with chainer.using_device(param.device):
            grad *= rate
