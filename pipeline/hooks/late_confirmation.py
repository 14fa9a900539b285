"""Confirms updates when the numbers of all ranks come, after the update.

Clipping by the norm of all gradients, and a loss scale, need a number of all ranks
before they update: the norm, or whether all gradients are finite. In most steps it
confirms the update that a rank would make without it. So the rank updates at once, and
begins the next minibatch. If the number requires another update, every rank undoes its
update, makes the right one, and repeats the first forwards of the next minibatch::

    rank 0   W3 | update | F0 F1 F2        confirmed | B0 F3 ...
    rank 1   W2 W3 | update | F0 F1        confirmed | B0 F2 ...
    rank 2      W2 W3 | update | F0        confirmed | B0 F1 ...
                          '--> the norm of all gradients

    rank 0   W3 | update | F0 F1 F2        wrong | update | F0 F1 F2 B0 F3 ...

See section 4 of Qi et al. (2023), Zero Bubble Pipeline Parallelism, "Bypassing
optimizer synchronizations". There, the inverse of an update undoes it, up to rounding.
Here, copies are restored. So parameters, losses and states of optimizers have the same
bits as in a run that waits.

**Where.** Each rank waits for the number behind its first forwards
(:mod:`divisible.schedules.first_forwards`), at a position that its schedule determines.
It looks for the number before each of them, and computes no further one if the update
was wrong. All ranks get the same number, so all of them repeat their forwards, or none.

**No deadlock.** The number is complete when all ranks have begun its reduction, in
their update. It needs nothing of the next minibatch. By induction, each rank ends its
step, since a step needs messages of that step only, so each rank gets to its update.
First forwards need messages of first forwards only. So each rank gets to the position
where it waits, and the number comes.

**Messages.** A rank that repeats its forwards sends the same messages once more. So it
first sends all messages of its first forwards, with empty messages in place of those
that it has not computed. It also receives all messages of first forwards that come to
it, and drops them. Both ends of a channel have then seen equally many.

**Wrong guesses.** After two updates in a row that were wrong, updates wait, until one
of them would have been right.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any

import chainer

from divisible.communication.late_numbers import LateNumbers
from divisible.optimizer_hooks import Hooks, is_clipping, named_hooks
from divisible.planning.units import format_bytes
from divisible.unconfirmed_update import UnconfirmedUpdate, UpdateCopies
from mixed_precision import LossScale, MixedPrecision
from pipeline.calls.ranks import Ranks
from pipeline.hooks.optimizers import KNOWN_HOOKS, OptimizerOfRank

#: Number of wrong guesses in a row after which updates wait.
PATIENCE = 2
# Packages whose update rules keep all that they change in their attributes.
_CHAINERS = "chainer.optimizers."
_RULES = (_CHAINERS, "mixed_precision.")


class LateConfirmation:
    """Confirms the updates of a rank, or takes them back.

    Args:
        ranks (Ranks): All ranks of the pipeline.

    Attributes:
        is_wanted (bool): Whether the next update does not wait for other ranks.
        copies (UpdateCopies): Copies of what the last update has changed.
        n_updates (int): Number of updates that did not wait.
        n_taken_back (int): Number of them that were taken back.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_wanted = False
        self.copies = UpdateCopies()
        self.n_updates = self.n_taken_back = 0
        self._n_wrong = 0
        self._update: UnconfirmedUpdate | None = None
        self._late: LateNumbers | None = None
        self._thread = 0

    def begin(self, update: UnconfirmedUpdate) -> None:
        """Takes over an update that other ranks have not confirmed."""
        ranks, reduction = self._ranks, update.reduction
        self._late = LateNumbers(
            ranks.calls, reduction.numbers, reduction, ranks.timeout, ranks.watch
        )
        self._update, self._thread = update, threading.get_ident()
        self.n_updates += 1

    @property
    def update(self) -> UnconfirmedUpdate | None:
        """The last update, until a call of all ranks has settled it."""
        return self._update

    def note(self, is_right: bool) -> None:
        """Records whether an update without a wait is, or would be, the right one."""
        self._n_wrong = 0 if is_right else self._n_wrong + 1

    def want(self, is_possible: bool) -> None:
        """Decides whether the next update waits; alike on all ranks.

        Args:
            is_possible (bool): Whether the update can be confirmed late.
        """
        self.is_wanted = is_possible and self._n_wrong < PATIENCE

    @property
    def is_surely_wrong(self) -> bool:
        """Whether this rank knows, without a wait, that the last update is wrong.

        Once all ranks' numbers have come, it has corrected the update.
        """
        if self._late is not None and self._late.have_come:
            self._finish()
        return self._update.is_surely_wrong

    def is_right(self) -> bool:
        """Returns whether the last update was the right one; waits for all ranks.

        If not, it has been taken back, and the right one has been made.
        """
        self._finish()
        return not self._update.is_surely_wrong

    def _finish(self) -> None:
        update, late = self._update, self._late
        if late is None:
            return
        late.read()
        # The right update, and what it reads, must not come here again.
        self._late = None
        reduced = update.reduction.result()
        is_right = update.is_right(reduced)
        self.note(is_right)
        if not is_right:
            self.n_taken_back += 1
            self._update = update._replace(is_surely_wrong=True)
            with self.copies.put_back():
                update.again(reduced)

    def finish(self) -> None:
        """Waits for other ranks, if an update is unconfirmed, and corrects it.

        Other threads than that of the update do not wait, since a step may run
        meanwhile.
        """
        is_mine = self._late is not None and threading.get_ident() == self._thread
        if is_mine and not self._ranks.calls.is_within:
            self._finish()

    def __str__(self) -> str:
        """Returns how many updates were taken back, and the memory of the copies."""
        if not self.n_updates:
            return ""
        return (
            f"updates that others confirmed later: {self.n_updates}, of which"
            f" {self.n_taken_back} were taken back; their copies take"
            f" {format_bytes(self.copies.n_bytes)} on this rank"
        )

    def settle(self) -> None:
        """Ends the confirmation of the last update; all ranks must call it."""
        if self._update is not None:
            self._finish()
            self._update = None


def obstacle(
    optimizers: Sequence[OptimizerOfRank], loss_scale: LossScale | None
) -> str:
    """Returns why updates cannot be confirmed late; an empty text if they can.

    Args:
        optimizers: The optimizers of a rank.
        loss_scale (LossScale or None): Loss scale of the pipeline, which may skip
            updates; ``None`` without one.
    """
    mixed = [o for o, *_ in optimizers if type(o) is MixedPrecision]
    if mixed and len(optimizers) > 1:
        return "several optimizers, one of them in mixed precision"
    if loss_scale is not None and not any(o.loss_scale is loss_scale for o in mixed):
        return "a loss scale of no optimizer that pipe.setup() knows"
    for optimizer, _, _, wrapper in optimizers:
        name, is_mixed = type(optimizer).__name__, type(optimizer) is MixedPrecision
        is_plain = type(optimizer).update is chainer.GradientMethod.update
        if wrapper is not None or not (is_plain or is_mixed):
            return f"updates of {name}, which may change anything"
        if is_mixed and not optimizer.has_comm:
            return "a MixedPrecision without comm"
        before = Hooks.of(optimizer).before
        places = [i for i, hook in enumerate(before) if is_clipping(hook)]
        if len(places) > 1:
            return "several GradientClippings, the second of which needs another norm"
        if is_mixed and places and places[0] > 0:
            return f"{type(before[0]).__name__} before it, as it needs another norm"
        params = optimizer.target.params()
        rules = [p.update_rule for p in params if p.update_rule is not None]
        owners = optimizer, *rules
        for _, hook in chain.from_iterable(map(named_hooks, owners)):
            if not (is_clipping(hook) or type(hook) in KNOWN_HOOKS):
                return f"the hook {type(hook).__name__}, which may change anything"
        for kind in {type(rule) for rule in rules}:
            if not kind.__module__.startswith(_RULES):
                return f"the update rule {kind.__name__}, which may change anything"
    return "" if optimizers else "no optimizer known to pipe.global_hooks"


def changes_gradients(optimizers: Sequence[Any]) -> bool:
    """Returns whether updates change ``param.grad`` before its norm is known.

    Args:
        optimizers: Optimizers of Chainer, not in mixed precision.
    """
    for optimizer in optimizers:
        for param in optimizer.target.params():
            rule = param.update_rule
            if param._loss_scale is not None or named_hooks(rule):
                return True
            if not type(rule).__module__.startswith((_CHAINERS, "builtins")):
                return True
        if any(not is_clipping(hook) for _, hook in named_hooks(optimizer)):
            return True
    return False
