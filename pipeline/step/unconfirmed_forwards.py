"""The first forwards of a step, with parameters that other ranks have not confirmed.

::

    F0 F1 F2 | confirmed    B0 F3 ...
    F0 F1 F2 | wrong        F0 F1 F2 B0 F3 ...     with the right parameters
    F0 -- -- | wrong        F0 F1 F2 B0 F3 ...     this rank has known it behind F0

Forwards that are repeated leave no trace. Persistent values of links are put back,
random numbers depend on the microbatch only, and all else begins with each minibatch.
An error in a forward counts only if the parameters were right.
:mod:`pipeline.hooks.late_confirmation` explains why no rank waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import chainer

from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.transport import Receiver, Sender
from divisible.schedules.actions import Action
from divisible.schedules.first_forwards import FirstForwards
from divisible.schedules.rank_program import Channel, RankProgram, Task
from pipeline.hooks.late_confirmation import LateConfirmation
from pipeline.stages.held import Persistents


class UnconfirmedForwards:
    """Runs the first forwards of a minibatch, and decides whether they count.

    Args:
        first (FirstForwards): The first forwards of this rank.
        late (LateConfirmation): Confirms the last update of this rank.
        links: Links of this rank's stages.

    Attributes:
        end (int): Position behind them in the rank's program.
    """

    def __init__(
        self,
        first: FirstForwards,
        late: LateConfirmation,
        links: Iterable[chainer.Link],
    ) -> None:
        self._first, self.end, self._late = first, first.end, late
        self._n_ahead = 0
        self._persistents = Persistents(links)

    def posts(
        self, receives: Mapping[Channel, Sequence[int]], n_ahead: int
    ) -> dict[Channel, Iterator[int]]:
        """Returns the microbatches that the first forwards may receive, by channel.

        Args:
            receives: All microbatches that come over each channel, in order.
            n_ahead (int): Number of receives that are posted ahead.
        """
        self._n_ahead = n_ahead
        return {
            channel: iter(order[: self._first.n_sent.get(channel, 0)])
            for channel, order in receives.items()
        }

    def run(
        self,
        program: RankProgram,
        execute: Callable[[Iterable[Task]], None],
        senders: Mapping[Channel, Sender],
        receivers: Mapping[Channel, Receiver],
        posts: dict[Channel, Iterator[int]],
        post_next: Callable[[Channel, Mapping], None],
    ) -> bool:
        """Runs the first forwards; returns whether the step goes on behind them.

        If not, the update has been taken back, and the step must be run again.

        Args:
            program (RankProgram): The program of this rank.
            execute: Executes some of its tasks.
            senders: The sending ends of channels.
            receivers: The receiving ends of channels.
            posts: The receives to post; see :meth:`posts`. Gets those of the whole
                program if the step goes on.
            post_next: Posts the next receive of a channel.
        """

        def receive(channel: Channel, microbatch: int) -> None:
            receivers[channel].receive(microbatch, "forwards that run again")
            post_next(channel, posts)

        tasks = iter(program.tasks[: self.end])
        if self._succeeds(tasks, execute):
            for channel, order in program.receives.items():
                n_received = self._first.n_received.get(channel, 0)
                n_soon = n_received + self._n_ahead
                n_posted = min(self._first.n_sent.get(channel, 0), n_soon)
                posts[channel] = iter(order[n_posted:])
                for _ in range(n_posted, n_soon):
                    post_next(channel, posts)
            return True
        # The other end of a channel must get as many messages as it expects.
        for task in tasks:
            operation, microbatch = task.operation, task.slot.microbatch
            if not isinstance(operation, Action):
                if operation.direction == "send":
                    senders[task.channel].send(microbatch, ())
                else:
                    receive(task.channel, microbatch)
        for channel, n_sent in self._first.n_sent.items():
            n_received = self._first.n_received.get(channel, 0)
            for microbatch in program.receives[channel][n_received:n_sent]:
                receive(channel, microbatch)
        self._late.is_right()
        self._persistents.restore()
        return False

    def _succeeds(
        self,
        tasks: Iterator[Task],
        execute: Callable[[Iterable[Task]], None],
    ) -> bool:
        """Executes tasks until the update proves wrong; returns whether they count."""
        late = self._late
        while not late.is_surely_wrong:
            task = next(tasks, None)
            if task is None:
                return late.is_right()
            try:
                execute([task])
            except (DisagreementError, StallError):
                raise
            except Exception:
                if not isinstance(task.operation, Action) or late.is_right():
                    raise
        return False
