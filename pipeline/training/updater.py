"""Chainer's trainer on a pipeline."""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np
from chainer.dataset import convert
from chainer.training.updaters import StandardUpdater

from divisible.communication.late_numbers import LateNumbers
from pipeline.pipeline import Pipeline
from pipeline.stages.reports import named, observed_name
from pipeline.step.late_dict import LateDict, LateValue
from pipeline.training.arguments import by_name, check_samples, check_targets
from pipeline.training.confirmed_updates import ConfirmedUpdates
from pipeline.training.control_files import VARIABLE
from pipeline.training.measures import NAMES, StepCost, measure, observations
from pipeline.training.minibatches import Key, MinibatchReader, iterators_of_rank
from pipeline.training.obey_orders import ObeyOrders
from pipeline.training.one_trainer import OneTrainer
from pipeline.training.shared_reports import SharedReports

_COSTS = [f"pipeline/{name}" for name in NAMES]


class PipelineUpdater(StandardUpdater):
    """Updates a model that is divided over the ranks of a pipeline.

    Use it in place of :class:`chainer.training.updaters.StandardUpdater`; the trainer,
    its triggers and its extensions stay as they are. Every rank makes an updater and a
    trainer, and runs it. The ranks' trainers work as one:

    * Only the rank with the first stage reads data, from its iterator. The iterators of
      the other ranks are not used and may be ``None``. Epochs are equal on all ranks.
    * ``main/loss``, ``main/accuracy`` and the values that layers report
      (``main/3/x`` from layer 3) are the same floats on every rank. So decisions that
      depend on them, such as early stopping, are alike.
    * On a grid, every replica reads from an iterator of its own, a
      :class:`~data_parallel.ReplicaIterator`. If the pipeline has made the grid for its
      plan, the updater makes this iterator from the one given. An optimizer that
      exchanges gradients gets the number of their samples as ``n_samples``.
    * The loop ends on all ranks when it ends on one, by its stop trigger or
      :meth:`request_stop`; an exception ends all ranks.
    * If minibatches overlap, ``LogReport`` and ``PlotReport`` read the values of a
      minibatch one minibatch later, or when they print. ``PrintReport`` and snapshots
      wait for what they need. So do extensions and triggers of your own when they read
      ``trainer.observation``, and early stopping by a value of the training.
      ``FailOnNonNumber`` reads only parameters of its rank. All of them see the same
      numbers as without overlap.
    * Values that extensions report on any rank are in the observations, and so in the
      logs, of all ranks. A warning names values that differ under one name.
    * Only rank 0 prints reports and progress bars, and writes logs and plots.

    The updater also reports four values:

    * ``pipeline/samples_per_second``;
    * ``pipeline/bubble``, the share of the ranks' time without computation;
    * ``pipeline/communication``, the mean seconds of a rank's sends and waits;
    * ``pipeline/process_memory``, the most bytes that a process has used, with Python
      and its libraries.

    On a GPU, the times are those of launches, not of the device's work.

    Args:
        iterator (chainer.dataset.Iterator or dict): Iterator over the minibatches, or
            several by name, one of which is ``'main'``; read on the first stage's rank
            only.
        optimizer (chainer.Optimizer, list or dict): Optimizer that is set up with this
            rank's stage. For several stages on a rank, give one optimizer for each, or
            one :class:`~mixed_precision.MixedPrecision` that is set up with all. The
            first is called ``'main'``, the others ``'main_1'`` and so on. If an
            extension changes a hyperparameter of ``'main'``, it changes in others that
            had the same value. Hooks treat the whole model, as after
            :meth:`~pipeline.Pipeline.global_hooks`.
        pipeline (Pipeline): Pipeline that computes losses and gradients.
        converter: Function that makes arrays from a list of samples.
        device: Device for the arrays of the converter; the pipeline moves them to its
            own device in any case. Unlike ``StandardUpdater``, this does not move the
            model: move it before you make the ``Pipeline``.
        auto_new_epoch (bool): Whether to call ``new_epoch`` of the optimizers.
        input_device: Another name for ``device``, which takes precedence.
        label_key (int, str or tuple): Key of the target among the converter's arrays,
            or several. By default the last array, as in
            :class:`chainer.links.Classifier`.

    Attributes:
        pipeline (Pipeline): The pipeline given.
        stop_code (int): The largest number that a rank has given to
            :meth:`request_stop`; the same on every rank after an update.
        n_snapshots_requested (int): Number of calls of :meth:`request_snapshot`, on the
            rank that has the most; the same on every rank after an update.

    Raises:
        ValueError: If a stage of this rank has no optimizer. If an optimizer would skip
            steps that other ranks take. If the data set is empty. If ``label_key`` is
            not a key of the arrays.

    Example:
        >>> import chainer
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline
        >>> stage = Divisible(L.Linear(4, 3))
        >>> optimizer = chainer.optimizers.SGD(0.1).setup(stage)
        >>> samples = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(10)]
        >>> iterator = chainer.iterators.SerialIterator(samples, 4)
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
        >>> updater = PipelineUpdater(iterator, optimizer, pipe)
        >>> updater.update()
        >>> updater.iteration, updater.epoch_detail
        (1, 0.4)
    """

    def __init__(
        self,
        iterator: Any,
        optimizer: Any,
        pipeline: Pipeline,
        *,
        converter: Callable = convert.concat_examples,
        device: Any = None,
        auto_new_epoch: bool = True,
        input_device: Any = None,
        label_key: Key | Sequence[Key] = -1,
    ) -> None:
        if not isinstance(pipeline, Pipeline):
            raise TypeError(
                f"pipeline must be a Pipeline, not {type(pipeline).__name__}: call"
                f" PipelineUpdater(iterator, optimizer, pipe)"
            )
        iterators = iterators_of_rank(iterator, pipeline)
        check_samples(iterators["main"])
        optimizers = by_name(optimizer)
        check_targets(optimizers, pipeline)
        pipeline.global_hooks(list(optimizers.values()))
        super().__init__(
            iterators,
            optimizers,
            converter,
            auto_new_epoch=auto_new_epoch,
            input_device=device if input_device is None else input_device,
        )
        self.pipeline = pipeline
        self._device_of_stages = next(iter(pipeline.stages.values())).device
        self.stop_code = self.n_snapshots_requested = 0
        self._requested = self._snapshots_wanted = 0
        #: Names of reported values that are equal on all ranks.
        self.reported_alike: set[str] = set()
        #: Whether a rank reported values under other names in the last update.
        self.somebody_reports_more = False
        # Costs and wishes of all ranks in the last update, which the next one reads;
        # and whether they are read at once, because a rank reports values of its own.
        self._last_wishes: LateNumbers | None = None
        self._reads_at_once = False
        self._trainer: weakref.ref[chainer.training.Trainer] | None = None
        # Number of samples in the last minibatch, in all replicas.
        self._n_samples = 0
        self._reader = MinibatchReader(
            pipeline, converter, self.input_device, label_key
        )
        # Whether only the first stage's rank knows the iterator's progress.
        self._is_behind = True
        self._hyperparameters = optimizers["main"].hyperparam.get_dict()

    def connect_trainer(self, trainer: chainer.training.Trainer) -> None:
        """Adds extensions that make the ranks' trainers one; called by the trainer."""
        self._trainer = weakref.ref(trainer)
        trainer.extend(OneTrainer())
        trainer.extend(SharedReports())
        if self.pipeline.internals.step.confirming is not None:
            trainer.extend(ConfirmedUpdates(self.pipeline))
        if VARIABLE in os.environ:
            trainer.extend(ObeyOrders(os.environ[VARIABLE]))
        if self.pipeline.internals.ranks.world.size > 1:
            # Python prints the traceback, so the trainer need not print it before.
            trainer.run = functools.partial(trainer.run, show_loop_exception_msg=False)

    def synchronize(self) -> None:
        """Sends the iterator's progress to all ranks, if they do not know it.

        All ranks must call it. The trainer does so before the first minibatch, also
        after a snapshot was loaded.
        """
        if self._is_behind:
            self._reader.synchronize(self._iterators["main"])
            self._is_behind = False

    def request_stop(self, code: int = 1) -> None:
        """Asks all ranks to stop training, after this update or one of the next two.

        It may be called at any time and on any rank, also by a signal's handler.

        Args:
            code (int): A positive number. All ranks get the largest as ``stop_code``.
        """
        self._requested = max(self._requested, code)

    def request_snapshot(self) -> None:
        """Asks all ranks for a snapshot, after this update or one of the next two.

        All ranks get the number of requests; under ``divisible run --keep-going``,
        extensions with ``snapshot`` in their names then run.
        """
        self._snapshots_wanted += 1

    def update(self) -> None:
        """Updates the parameters with one minibatch, and reports its costs.

        Raises:
            StopIteration: On every rank, at the end of an iterator without repetition.
        """
        start = time.perf_counter()
        self._observe_late()
        self.update_core()
        self.iteration += 1
        of_ranks = self._gather_costs_and_wishes(time.perf_counter() - start)
        self._report_costs(of_ranks)
        before, self._last_wishes = self._last_wishes, of_ranks
        if before is not None:
            self._read_wishes(before)
        waits = self._reads_at_once or self.pipeline.internals.step.overlap.feature
        if before is None or waits:
            self._read_wishes(of_ranks)

    def _gather_costs_and_wishes(self, seconds: float) -> LateNumbers:
        """Begins to gather what each rank did and wants in an update.

        Args:
            seconds (float): Seconds of this rank's update.

        Returns:
            LateNumbers: A row for each rank: its :class:`.StepCost`, the stop code and
            the number of snapshots that it wants, and whether it reports more values.
        """
        internals = self.pipeline.internals
        cost = measure(internals.record, seconds, self._device_of_stages)
        reports_more = not _observation().keys() <= self.reported_alike
        wishes = self._requested, self._snapshots_wanted, reports_more
        return internals.ranks.gather(np.array([*cost, *wishes]))

    def _report_costs(self, of_ranks: LateNumbers) -> None:
        """Reports the costs of a minibatch, which are read when they are asked for."""
        n_samples = self._n_samples

        def observed() -> dict[str, float]:
            costs = of_ranks.read()[:, : len(StepCost._fields)]
            return dict(zip(_COSTS, observations(costs, n_samples).values()))

        self._report(LateDict({name: LateValue(name, observed) for name in _COSTS}))

    def _observe_late(self) -> None:
        """Gives the trainer an observation whose values may come late."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or self.pipeline.internals.step.overlap.feature:
            return
        reporter = chainer.get_current_reporter()
        if reporter.observation is trainer.observation:
            late = LateDict(trainer.observation)
            trainer.observation = reporter.observation = late

    def _read_wishes(self, of_ranks: LateNumbers) -> None:
        """Reads what the ranks wanted after a minibatch; waits for it."""
        *_, stop_code, n_snapshots, reports_more = of_ranks.read().max(axis=0)
        self.stop_code, self.n_snapshots_requested = int(stop_code), int(n_snapshots)
        self.somebody_reports_more = bool(reports_more)
        self._reads_at_once |= self.somebody_reports_more

    def update_core(self) -> None:
        """Trains on one minibatch; a subclass may do more, on all ranks alike."""
        minibatch = self._reader.next(self._iterators["main"])
        # Before the step, which compares how copies of a parameter are updated.
        self._share_hyperparameters()
        result = self.step(minibatch.x, minibatch.t)
        self._update_parameters()
        # The samples of all replicas.
        self._n_samples = sum(self.pipeline.internals.ranks.calls.agreed.n_samples)
        if isinstance(result, LateDict):
            read, names = functools.partial(named, result), map(observed_name, result)
            result = LateDict({name: LateValue(name, read) for name in names})
        else:
            result = named(result)
        self._report(result)

    def step(self, x: Any, t: Any) -> dict[str, float]:
        """Computes the gradients of a minibatch, for the optimizers.

        A subclass may do it in another way, on all ranks alike. For example, a second
        pipeline over the same layers may replace some gradients of the first one
        (:doc:`/howto/other_losses`).

        Args:
            x (tuple of arrays): Inputs, on the first stage's rank.
            t (tuple of arrays): Targets, on the last stage's rank.

        Returns:
            dict: Values to report, equal on every rank; ``'loss'`` becomes
                ``main/loss``.
        """
        return self.pipeline.step(x, t, list(self._optimizers.values()))

    def _report(self, values: dict[str, float]) -> None:
        """Reports values that are equal on all ranks."""
        self.reported_alike |= values.keys()
        observation = _observation()
        if isinstance(observation, LateDict) and isinstance(values, LateDict):
            observation.update(values.unread())
        else:
            chainer.report(values)

    def _update_parameters(self) -> None:
        for optimizer in self._optimizers.values():
            if hasattr(optimizer, "n_samples"):
                # The optimizer averages over the replicas, weighted by samples.
                optimizer.n_samples = self.pipeline.n_samples
            with self.pipeline.recorded_update():
                optimizer.update()
        if self.auto_new_epoch and self.is_new_epoch:
            for optimizer in self._optimizers.values():
                optimizer.new_epoch(auto=True)

    def get_optimizer(self, name: str) -> chainer.Optimizer:
        """Returns an optimizer, with the hyperparameters that follow ``'main'``."""
        self._share_hyperparameters()
        return super().get_optimizer(name)

    def get_all_optimizers(self) -> dict[str, chainer.Optimizer]:
        """Returns the optimizers by name, with hyperparameters that follow ``'main'``.

        So a snapshot has a changed hyperparameter in all of them.
        """
        self._share_hyperparameters()
        return super().get_all_optimizers()

    def _share_hyperparameters(self) -> None:
        """Copies changes in ``'main'``'s hyperparameters to other optimizers."""
        main, *others = self._optimizers.values()
        if not others:
            return
        before, now = self._hyperparameters, main.hyperparam.get_dict()
        for name in now:
            if now[name] != before.get(name):
                for other in others:
                    if getattr(other.hyperparam, name, None) == before.get(name):
                        setattr(other.hyperparam, name, now[name])
        self._hyperparameters = now

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the state of the updater and of the pipeline.

        The state of the iterator is written by the first stage's rank.
        """
        super().serialize(serializer)
        self.pipeline.serialize(serializer["pipeline"])
        if isinstance(serializer, chainer.Deserializer):
            self._is_behind = True
            # Other optimizers should follow changes, not loaded values.
            main = self._optimizers["main"]
            self._hyperparameters = main.hyperparam.get_dict()


def _observation() -> dict[str, Any]:
    """Returns the values reported since the update began, if a reporter is active."""
    try:
        return chainer.get_current_reporter().observation
    except IndexError:
        return {}
