"""Executes a schedule: its actions on stages, its messages over a transport."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Callable

import chainer
import numpy as np
from mpi4py import MPI

from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    END,
    RECEIVE,
    SEND,
    own_flight_record,
)
from divisible.communication.narrowing import Pair, over
from divisible.communication.signatures import Tensors
from divisible.communication.transport import Receiver, Sender, Transport
from divisible.schedules.actions import Action, Route
from divisible.schedules.first_forwards import FirstForwards, first_forwards
from divisible.schedules.lowering import lower
from divisible.schedules.rank_program import (
    RECEIVES_AHEAD,
    Channel,
    RankProgram,
    Record,
    Slot,
    Task,
)
from divisible.schedules.schedule import Schedule
from pipeline.stages.held_elsewhere import HeldElsewhere
from pipeline.stages.stage import Stage
from pipeline.stages.stage_groups import StageGroups
from pipeline.step.action_error import ActionError
from pipeline.step.progress import Progress
from pipeline.step.unconfirmed_forwards import UnconfirmedForwards


class Runner:
    """One rank's part in the execution of schedules.

    Args:
        stages: Stages of this rank, by their position in the pipeline.
        stage_ranks: Rank of each stage of the pipeline.
        rank (int): Number of this rank.
        transport (Transport): Sends and receives messages.
        routes: Skip connections between stages.
        title (str): Name of this rank, for messages.
        elsewhere (HeldElsewhere or None): Store for microbatches between forward and
            backward; ``None`` for memory.
        message_dtypes: Dtypes of messages over each edge between neighbouring stages,
            forward and backward; none if no edge is narrowed.

    Attributes:
        record (Record or None): Times of the last run.
        waits_for_device (bool): Whether each action waits for the GPU, so that its
            times are those of the computation, not of the launch.
        measures_pending (bool): Whether to measure :attr:`pending_bytes`.
        awaited: Ranks that must have taken what was sent to them when a run ends;
            ``None`` for all.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        stage_ranks: Sequence[int],
        rank: int,
        transport: Transport,
        routes: Sequence[Route] = (),
        title: str = "",
        elsewhere: HeldElsewhere | None = None,
        message_dtypes: Sequence[Pair] = (),
    ) -> None:
        self._elsewhere = elsewhere
        self._title = title or f"rank {rank}"
        self._stages = stages
        self._rank = rank
        self._transport = transport
        self._routes = routes
        self._senders: dict[Channel, Sender] = {}
        self._receivers: dict[Channel, Receiver] = {}
        neighbours = [Route("", i, i + 1) for i in range(len(stage_ranks) - 1)]
        for number, (skip, start, end) in enumerate([*neighbours, *routes]):
            for is_forward, stage, other in ((True, start, end), (False, end, start)):
                channel = Channel(stage, is_forward, skip)
                source, target = stage_ranks[stage], stage_ranks[other]
                tag = 2 * number + is_forward
                if rank == source != target:
                    self._senders[channel] = sender = transport.sender(tag, target)
                    if message_dtypes:
                        pair = over(message_dtypes, start, end)
                        sender.narrow(pair[not is_forward])
                if rank == target != source:
                    self._receivers[channel] = transport.receiver(tag, source)
        is_alone = not (self._senders or self._receivers)
        self._looks = [] if is_alone else [transport.look]
        self.record: Record | None = None
        self.waits_for_device = self.measures_pending = False
        self._pending: dict[int, float] = {}
        self._groups: dict[int, StageGroups] = {}
        self.awaited: Container[int] | None = None

    @property
    def pending_bytes(self) -> float:
        """The most bytes that a microbatch held for its W, in all stages."""
        return sum(self._pending.values())

    def poll_for(self, most_bytes: int) -> None:
        """Polls for messages during steps, if there are others that are as large."""
        self._transport.note_size(most_bytes)

    def program(self, schedule: Schedule) -> RankProgram:
        """Returns this rank's part of a schedule, for :meth:`run`."""
        rendezvous = self._transport.rendezvous
        return RankProgram.of(schedule, self._rank, rendezvous, self._routes)

    def first_forwards(self, schedule: Schedule) -> FirstForwards:
        """Returns this rank's first forwards of a schedule, for :meth:`run`."""
        return first_forwards(lower(schedule, False, self._routes), self._rank)

    def run(
        self,
        program: RankProgram,
        inputs: Sequence[Any],
        look: Callable[[], None] | None = None,
        unconfirmed: UnconfirmedForwards | None = None,
        behind_losses: Callable[[], None] | None = None,
    ) -> list[Any] | None:
        """Runs this rank's part of a schedule.

        Args:
            program (RankProgram): This rank's part of the schedule.
            inputs: Input tensors of the first stage for each microbatch; read on the
                first stage's rank only.
            look: Called between the functions of layers, forward and backward.
            unconfirmed (UnconfirmedForwards or None): Decides whether the first
                forwards count; ``None`` if they do.
            behind_losses: Called when the last stage has computed all losses, on its
                rank. Not together with ``unconfirmed``.

        Returns:
            Output tensors of the last stage for each microbatch, on its rank; an empty
            list on the others. ``None`` if the first forwards do not count, and the
            program must be run again.

        Raises:
            ActionError: If a layer fails.
            StallError: If another rank does not answer in time.
        """
        n_stages, microbatches = program.n_stages, range(program.n_microbatches)
        results: dict[Slot, Tensors] = {
            Slot(-1, True, i): tensors for i, tensors in enumerate(inputs)
        }
        # The backward begins with the last stage's loss.
        results.update((Slot(n_stages, False, i), ()) for i in microbatches)
        posts = {channel: iter(order) for channel, order in program.receives.items()}
        if unconfirmed is not None:
            posts = unconfirmed.posts(program.receives, RECEIVES_AHEAD)
        for channel in posts:
            for _ in range(RECEIVES_AHEAD):
                self._post_next(channel, posts)

        if self._elsewhere is not None:
            self._elsewhere.begin(program.absences)
        times: list[float] = []
        self.record = Record(program, times)
        looks = self._looks if look is None else [*self._looks, look]
        tasks = program.tasks
        execute = functools.partial(self._run_tasks, results, posts, times)
        with Progress(*looks) if looks else nullcontext():
            if unconfirmed is not None:
                is_right = unconfirmed.run(
                    program,
                    execute,
                    self._senders,
                    self._receivers,
                    posts,
                    self._post_next,
                )
                if not is_right:
                    return None
                tasks = tasks[unconfirmed.end :]
            if behind_losses is not None:
                n = program.n_until_losses()
                execute(tasks[:n])
                behind_losses()
                tasks = tasks[n:]
            execute(tasks)
        if self._senders:
            self._transport.flush(self.awaited)
        outputs = (Slot(n_stages - 1, True, i) for i in microbatches)
        return [results[slot] for slot in outputs if slot in results]

    def _run_tasks(
        self,
        results: dict[Slot, Tensors],
        posts: dict[Channel, Iterator[int]],
        times: list[float],
        tasks: Iterable[Task],
    ) -> None:
        """Runs some tasks of a program.

        Args:
            results: Tensors that wait for their use.
            posts: The receives to post, by channel.
            times: Gets the start and end of each task.
            tasks: The tasks.
        """
        clock = time.perf_counter
        for task in tasks:
            operation, slot = task.operation, task.slot
            times.append(clock())
            if isinstance(operation, Action):
                own_flight_record.write(ACTION, BEGIN, task.name)
                self._compute(task, results)
                own_flight_record.write(ACTION, END, task.name)
            elif operation.direction == "send":
                self._send(task, results.pop(slot))
            else:
                results[slot] = self._receive(task)
                self._post_next(task.channel, posts)
            times.append(clock())

    def of_copies(self, stages: Mapping[int, Stage]) -> Runner:
        """Returns a runner of copied stages, over the same channels.

        Args:
            stages: Copies of this rank's stages, by number.
        """
        other = copy.copy(self)
        other._stages, other._groups, other._elsewhere = stages, {}, None
        other.waits_for_device = other.measures_pending = False
        other.awaited = None
        return other

    def find_shapes(self, sizes: Sequence[int]) -> dict[Channel, tuple[str, str]]:
        """Finds the shapes of messages; see :meth:`.Sender.find_shapes`.

        Args:
            sizes: Numbers of samples of the microbatches that were run; none if there
                were none.

        Returns:
            For each channel that begins on this rank the shapes of its messages, and
            the reason if they do not follow from the number of samples.
        """
        for receiver in self._receivers.values():
            receiver.find_shapes(sizes)
        found = {}
        for channel, sender in self._senders.items():
            reason = sender.find_shapes(sizes)
            found[channel] = "" if reason else str(sender.shapes), reason
        return found

    def expect(self, n_microbatches: int, n_samples: int) -> None:
        """Agrees on messages before the first one; all ranks call it.

        Args:
            n_microbatches (int): Number of microbatches of a minibatch.
            n_samples (int): The most samples of a microbatch.
        """
        for end in (*self._senders.values(), *self._receivers.values()):
            end.expect(n_microbatches, n_samples)

    def make_room(self, n_slots: int, world: MPI.Comm) -> None:
        """Makes windows; see :meth:`.OneSidedTransport.make_room`."""
        self._transport.make_room(n_slots, world)

    def close(self) -> None:
        """Frees the buffers of messages."""
        for end in (*self._senders.values(), *self._receivers.values()):
            end.close()
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _post_next(self, channel: Channel, posts: Mapping) -> None:
        microbatch = next(posts[channel], None)
        if microbatch is not None:
            self._receivers[channel].post(microbatch)

    def _send(self, task: Task, tensors: Tensors) -> None:
        slot, peer, n_bytes = task.slot, task.operation.peer, _n_bytes(tensors)
        own_flight_record.write(SEND, BEGIN, task.name, peer, n_bytes)
        try:
            self._senders[task.channel].send(slot.microbatch, tensors)
        except TypeError as error:
            raise ActionError(f"{task.name} on {self._title}: {error}") from error
        own_flight_record.write(SEND, END, task.name, peer, n_bytes)

    def _receive(self, task: Task) -> Tensors:
        slot, peer = task.slot, task.operation.peer
        own_flight_record.write(RECEIVE, BEGIN, task.name, peer)
        receiver = self._receivers[task.channel]
        tensors = receiver.receive(slot.microbatch, task.next_action)
        own_flight_record.write(RECEIVE, END, task.name, peer, _n_bytes(tensors))
        return tensors

    def _compute(self, task: Task, results: dict[Slot, Tensors]) -> None:
        action = task.operation
        stage, microbatch = self._stages[action.stage], action.microbatch
        try:
            if self._elsewhere is not None:
                self._elsewhere.before()
            skips = {}
            if task.group:
                microbatch = microbatch[0]
            else:
                for name, slot in task.takes.items():
                    skips[name] = results.pop(slot)
            if action.kind == "W":
                if self.measures_pending:
                    self._measure_pending(stage, action)
                stage.backward_weight(action.microbatches)
            elif task.group:
                self._compute_group(task, results)
            elif action.kind == "R":
                stage.recompute(microbatch)
            else:
                tensors = skips.pop("")
                if action.kind == "F":
                    result, handed_over = stage.forward(
                        microbatch, tensors, skips, task.is_recomputed
                    )
                else:
                    result, handed_over = stage.backward(
                        microbatch, tensors, skips, action.kind == "I"
                    )
                results[task.slot] = result
                for name, tensors in handed_over.items():
                    results[task.slot._replace(skip=name)] = tensors
            if self._elsewhere is not None:
                self._elsewhere.after(stage, microbatch)
        except (DisagreementError, StallError):
            # Errors of other ranks, received while this one computed.
            raise
        except Exception as error:
            raise ActionError.of(action, stage, error, self._title) from error
        if self.waits_for_device:
            synchronize(stage.layers.device)

    def _compute_group(self, task: Task, results: dict[Slot, Tensors]) -> None:
        """Computes an F, R, B or I of several microbatches."""
        stage, kind, microbatches = task.operation
        groups = self._groups.get(stage)
        if groups is None:
            groups = self._groups[stage] = StageGroups(self._stages[stage])
        if kind == "R":
            groups.recompute(microbatches)
            return
        tensors, skips = [], []
        for _, takes in task.group:
            mine = {name: results.pop(slot) for name, slot in takes.items()}
            tensors.append(mine.pop(""))
            skips.append(mine)
        if kind == "F":
            found = groups.forward(microbatches, tensors, skips, task.is_recomputed)
        else:
            found = groups.backward(microbatches, tensors, skips, kind == "I")
        for (slot, _), (result, handed_over) in zip(task.group, found):
            results[slot] = result
            for name, tensors in handed_over.items():
                results[slot._replace(skip=name)] = tensors

    def _measure_pending(self, stage: Stage, action: Action) -> None:
        """Measures what waits for a W; the group has most of it."""
        n_bytes = stage.pending_bytes() / len(action.microbatches)
        known = self._pending.get(action.stage, 0)
        self._pending[action.stage] = max(known, n_bytes)


def _n_bytes(tensors: Tensors) -> int:
    return sum(array.nbytes for array, *_ in tensors if array is not None)


def synchronize(device: chainer.backend.Device) -> None:
    """Waits until a GPU has computed what was launched on it; else does nothing."""
    if device.xp is not np:
        device.device.synchronize()
