"""A pipeline between the passes of minibatches: its optimizers, its times, its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from divisible.schedules.events import CATEGORIES, UPDATE
from divisible.schedules.rank_program import Span
from divisible.schedules.timeline import Timeline
from pipeline.calls.replicas import part_of
from pipeline.hooks.setting_up import set_up
from pipeline.state import PipelineState

_Own = TypeVar("_Own", bound="BetweenSteps")


class BetweenSteps(PipelineState):
    """The calls of a pipeline between the passes of minibatches."""

    def _call(self, name: str, goes_on: bool = False) -> AbstractContextManager[None]:
        """Returns the context of a call."""
        raise NotImplementedError

    def setup(self, optimizer: Any) -> Any:
        """Sets up an optimizer for all stages of this rank; all ranks must call it.

        Its hooks treat the whole model, as after :meth:`global_hooks`. With replicas,
        :func:`~data_parallel.create_multi_node_optimizer` wraps it, and gradients are
        exchanged in the plan's dtype.

        Args:
            optimizer (chainer.Optimizer): An optimizer of Chainer, not set up; or a
                :class:`~mixed_precision.MixedPrecision` with the ``comm`` of all ranks,
                whose ``loss_scale`` the pipeline was given. An optimizer that was set
                up with the chain of these layers (:func:`~divisible.from_chain`) keeps
                its hooks, and parameters stay frozen.

        Returns:
            chainer.Optimizer: The optimizer for :class:`PipelineUpdater`,
            :func:`snapshot` and :class:`Rebalance`. It does not update parameters of a
            loss.

        Raises:
            TypeError: If ``optimizer`` is not an optimizer.
            ValueError: If it has hooks already. Add hooks after this call.
            DisagreementError: With replicas, if another rank refuses.

        Example:
            >>> import chainer
            >>> from mpi4py import MPI
            >>> from divisible import Divisible
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
            >>> optimizer = pipe.setup(chainer.optimizers.Adam())
        """
        stages, grid = list(self.stages.values()), self._ranks.grid
        optimizer = set_up(optimizer, stages, grid, self)
        self._step.updates.hooks.add(optimizer)
        return optimizer

    def global_hooks(self, optimizer: Any) -> None:
        """Makes hooks of optimizers treat the whole model, as in serial training.

        All ranks must call it, after ``optimizer.setup(stage)``;
        :class:`PipelineUpdater` calls it itself. Hooks may be added later.
        ``GradientClipping`` then clips by the norm over all stages, and
        ``GradientNoise`` draws the same noise for each parameter with any cuts:
        :doc:`/explanation/numerics`.

        Args:
            optimizer (chainer.Optimizer or list): One optimizer, or all of this rank as
                one list.

        Raises:
            TypeError, ValueError: If an object is not an optimizer, or not set up.

        Example:
            >>> import chainer
            >>> from mpi4py import MPI
            >>> from divisible import Divisible
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> optimizer = chainer.optimizers.SGD(0.1).setup(stage)
            >>> optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
            >>> pipe.global_hooks(optimizer)
        """
        self._step.updates.hooks.add(optimizer)

    def my_part(self, *arrays: Any) -> Any:
        """Returns this replica's part of a minibatch; without replicas, all of it.

        Args:
            *arrays: The whole minibatch: arrays, tuples of arrays, or ``None``.

        Returns:
            tuple: The part of each argument; for a single argument, the part itself.

        Example:
            >>> import chainer
            >>> import numpy as np
            >>> from mpi4py import MPI
            >>> from divisible import Divisible
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
            >>> x, t = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
            >>> [part.shape for part in pipe.my_part(x, t)]
            [(6, 4), (6,)]
        """
        parts = tuple(part_of(self._ranks.grid, each) for each in arrays)
        return parts[0] if len(parts) == 1 else parts

    def flush(self) -> bool:
        """Ends the last minibatch, where gradients come one step late.

        All ranks must call it. With a schedule of two weight versions, such as
        ``'pipedream_2bw'``, the last gradient of a run waits for another step. After
        this call ``param.grad`` has it, and ``optimizer.update()`` applies it. The next
        step is then like the first one. With other schedules nothing is done.

        Returns:
            bool: Whether there is a gradient to apply. It is the same on all ranks.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time.

        Example:
            >>> import chainer
            >>> import numpy as np
            >>> from mpi4py import MPI
            >>> from divisible import Divisible
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(
            ...     stage, MPI.COMM_SELF, n_microbatches=2, schedule='pipedream_2bw')
            >>> optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
            >>> x, t = np.ones((2, 4), np.float32), np.zeros(2, np.int32)
            >>> for _ in range(3):
            ...     result = pipe.step(x, t)
            ...     optimizer.update()      # of the minibatch before; first of none
            >>> if pipe.flush():
            ...     optimizer.update()      # of the last minibatch
        """
        if self.schedule.weight_versions == 1:
            return False
        with self._call("flush"):
            self._ranks.calls.compare()
            return self._step.flush()

    def reset_states(self) -> None:
        """Drops states of :func:`~divisible.carry_state`; all ranks must call it."""
        with self._call("reset"):
            self._ranks.calls.compare()
            self._step.reset_states()

    def _check_set_up(self) -> None:
        """Refuses a step whose gradients would not be averaged."""
        if not self._step.vetoes:
            raise RuntimeError(
                f"the plan has {self._ranks.n_replicas} replicas, but nothing averages"
                f" their gradients: call optimizer = pipe.setup(optimizer)"
            )

    def confirm_update(self) -> None:
        """Waits until the last update of the optimizers is the right one.

        With ``overlap_minibatches=True``, an update that is clipped by the norm of all
        gradients, or has a loss scale, may be corrected in the next :meth:`step`. Call
        this before the script reads or changes parameters between the two, or states of
        optimizers. Calls of all ranks, such as ``evaluate``, :func:`snapshot` and
        ``close``, do it themselves. Ranks need not call it together.

        Raises:
            FloatingPointError: If gradients were not finite, and no smaller loss scale
                is left to try.
            StallError: If another rank does not update in time.

        Example:
            >>> import chainer
            >>> from mpi4py import MPI
            >>> from divisible import Divisible
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
            >>> pipe.confirm_update()
        """
        if (confirming := self._step.confirming) is not None:
            confirming.late.finish()

    @contextmanager
    def recorded_update(self) -> Iterator[None]:
        """Returns a context that puts an optimizer's update on the timeline.

        The update belongs to the last :meth:`step`. :class:`PipelineUpdater` records
        its updates itself. An exchange of gradients in ``update`` that is on the
        timeline, too, is not part of the update, which begins behind it.

        Example:
            >>> import chainer
            >>> import numpy as np
            >>> from mpi4py import MPI
            >>> from divisible import Divisible
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
            >>> optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
            >>> result = pipe.step(np.ones((2, 4), np.float32), np.zeros(2, np.int32))
            >>> with pipe.recorded_update():
            ...     optimizer.update()
            >>> [str(event.what) for event in pipe.timeline()]
            ['0F0', '0B0', 'update']
        """
        start, what = time.perf_counter(), CATEGORIES[UPDATE]
        yield
        self.internals.record_after(Span(what, start, time.perf_counter(), what))

    def timeline(self) -> Timeline:
        """Returns the times of every rank's actions in the last :meth:`step`.

        Recording is always on, and reads the clock twice per action or message. All
        ranks must call this. On a GPU, the times are those of launches.

        Returns:
            Timeline: The timeline of all ranks of the pipeline, the same on each of
            them, on one clock that starts with the first action. A wait is a receive,
            from when it was needed to when it was complete. Updates in
            :meth:`recorded_update` follow. On a grid, it is the timeline of this
            replica, with the exchanges so far.

        Raises:
            RuntimeError: If no step has been run yet.
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time.
        """
        if (record := self._step.record) is None:
            raise RuntimeError(
                "no step has been run yet: call step() before timeline()"
            )
        with self._call("timeline"):
            self._ranks.calls.compare()
            return self._ranks.timeline(
                record, self._step.early_exchanges.spans(record)
            )

    def close(self) -> None:
        """Frees the pipeline's communicator, and the grid that it has made, if any.

        All ranks must call this. It is needed only if many pipelines are made in one
        process. A pipeline is a context manager that closes itself. After a failed
        call, or if the pipeline is closed already, nothing is done.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time, or its script has
                ended.
            SnapshotError: If a snapshot in the background has failed; call it again.
        """
        # A failed call may have messages under way, whose buffers must stay.
        if self._ranks.calls.has_failed or self._ranks.are_closed:
            return
        for end in self._ranks.before_close.values():
            end()
        # If one rank closed alone, it could not answer others that wait for it.
        with self._call("close"):
            self._ranks.calls.compare()
        self._step.close()
        self._ranks.close()
        if self._own_grid is not None:
            self._own_grid.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an error, the other ranks do not close with this one.
        if error is None:
            self.close()
