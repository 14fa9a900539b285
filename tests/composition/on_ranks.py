"""Runs a case on ranks, each of which writes what came of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
import warnings
from typing import Any, NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

import chainer_kernels
from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan
from divisible.carried_state import carrying, declared, place_of
from divisible.communication.flight_record import BEGIN, CALL, SEND, own_flight_record
from mixed_precision import to_float16
from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot
from tests.composition import faults, models
from tests.composition.arguments import arguments_of, use_kernels
from tests.composition.cases import Case, Event, Way, parse
from tests.composition.losses import LOSSES
from tests.composition.record import Record
from tests.composition.updating import (
    add_hooks,
    compression_of,
    mixed,
    optimizer_of,
    set_rates,
)

#: Seconds that a rank waits for another one.
TIMEOUT = 20


class Ended(NamedTuple):
    """The end of a case on a rank.

    Attributes:
        record: Results of its calls, and its state; ``None`` after an error.
        place: Rank in the pipeline and number of the replica at the end.
        kind: Type of the error, or ''.
        words: Its message.
        trace: Its traceback.
        has_sent: Whether this rank has sent an array since the refused call began.
    """

    record: Record | None
    kind: str = ""
    words: str = ""
    trace: str = ""
    has_sent: bool = False


def run_case(comm: MPI.Comm, line: str, folder: str, fault: str = "") -> None:
    """Runs a case; called on its ranks.

    Args:
        comm: Communicator of as many ranks as the largest way needs.
        line: The case.
        folder: Folder for the files ``0.pkl``, ``1.pkl`` and so on.
        fault: Name of a planted fault; '' for none.
    """
    case = parse(line)
    with warnings.catch_warnings(), faults.planted(fault):
        warnings.simplefilter("ignore")
        ended = _ended(comm, case, folder)
    with open(f"{folder}/{comm.rank}.tmp", "wb") as file:
        pickle.dump(tuple(ended), file)
    os.replace(file.name, f"{folder}/{comm.rank}.pkl")


def _ended(comm: MPI.Comm, case: Case, folder: str) -> Ended:
    try:
        return Ended(_Run(comm, case, folder).live())
    except Exception as error:
        name, trace = type(error).__name__, traceback.format_exc()
        return Ended(None, name, str(error), trace, _has_sent())


def _has_sent() -> bool:
    """Returns whether this rank has sent arrays in the call that was made last."""
    sent = False
    for entry in own_flight_record.log().entries:
        begins = entry.kind == CALL and entry.phase == BEGIN
        sent = not begins and (sent or entry.kind == SEND)
    return sent


def _kept(way: Way) -> tuple[bool, ...]:
    """Returns what the replicas of a way keep between steps."""
    has_feedback = bool(dict(way.exchange).get("error_feedback"))
    return way.n_replicas > 1, has_feedback, way.is_double_buffered


class LeftError(Exception):
    """Another rank has failed, for which this rank has no work."""


class _Run:
    """A pipeline on some ranks, and its life.

    Args:
        comm: Communicator of all ranks of the case.
        case: The case.
        folder: Folder for snapshots.
    """

    def __init__(self, comm: MPI.Comm, case: Case, folder: str) -> None:
        self._all, self._case, self._folder = comm, case, folder
        self._measure = LOSSES[case.model.loss]
        self._record = Record()
        self._n_snapshots = 0
        self._resources = contextlib.ExitStack()
        self._pipe: Pipeline | None = None
        # Whether a step has left gradients to the next one.
        self._awaits = False
        # All ranks meet before and after each change of their number.
        self._n_meetings = 2 * (len(case.ways) - 1)

    def live(self) -> Record:
        """Runs the whole life; returns what came of it on this rank."""
        case, events = self._case, list(self._case.life.events)
        dtype = np.float64 if case.model.dtype == "float64" else np.float32
        is_on = chainer_kernels.is_enabled()
        with chainer.using_config("dtype", np.dtype(dtype)), self._resources:
            try:
                self._start(case.way)
                for number in range(len(case.life.sizes)):
                    while events and events[0].before == number:
                        self._happen(events.pop(0), number)
                    if self._pipe is not None:
                        self._train(number)
                for event in events:
                    self._happen(event, len(case.life.sizes) - 1)
                if self._pipe is not None:
                    self._pipe.confirm_update()
                    self._record.keep_state(self._state())
                    self._end()
            except LeftError:
                raise
            except Exception as error:
                if self._n_meetings:
                    self._meet(error)
                raise
            finally:
                use_kernels(is_on)
        return self._record

    def _meet(self, error: Exception | None = None) -> None:
        """Waits for all ranks of the case, and ends if one of them has failed."""
        self._n_meetings = 0 if error else self._n_meetings - 1
        if any(self._all.allgather(error is not None)) and error is None:
            raise LeftError("another rank has failed")

    def _start(self, way: Way) -> None:
        """Begins to run the model in another way, on the first ranks."""
        # A refusal of what follows is one before messages if none is sent from here on.
        own_flight_record.write(CALL, BEGIN, "start")
        before, self._way, self._pipe = getattr(self, "_way", way), way, None
        # Replicas alone keep some values, as the documentation says.
        self._is_strict = _kept(before) == _kept(way)
        comm = self._all.Split(0 if self._all.rank < way.n_ranks else 1)
        self._resources.callback(comm.Free)
        if self._all.rank >= way.n_ranks:
            return
        use_kernels(way.has_kernels, way.products)
        case = self._case
        grid = None
        if way.n_replicas > 1:
            grid = Grid(comm, way.n_pipeline, timeout=TIMEOUT)
            grid.shares = list(way.shares) or None
        rank = comm.rank if grid is None else grid.pipeline.rank
        model, plan = self._build(), Plan(list(way.cuts))
        stages = [
            model.divide(*plan.range(number))
            for number, owner in enumerate(way.stage_ranks)
            if owner == rank
        ]
        del model
        optimizer = mixed(case, optimizer_of(case), comm)
        options = arguments_of(way)
        if case.update.loss_scale:
            options["loss_scale"] = optimizer.loss_scale
        self._pipe = pipe = Pipeline(
            stages,
            comm if grid is None else grid,
            n_microbatches=way.n_microbatches,
            lossfun=self._measure.lossfun,
            accfun=self._measure.accfun,
            seed=case.seed % 2**31,
            timeout=TIMEOUT,
            **options,
        )
        if grid is not None:
            given = {"pipeline": pipe, "timeout": TIMEOUT, **dict(way.exchange)}
            optimizer = create_multi_node_optimizer(optimizer, grid.data, **given)
        self._optimizer = pipe.setup(optimizer)
        add_hooks(case, self._optimizer)
        for stage in pipe.stages.values():
            set_rates(case, stage)
        self._compress = compression_of(case, self._optimizer, pipe)

    def _build(self) -> Divisible:
        model = models.build(self._case)
        return to_float16(model) if self._case.model.dtype == "float16" else model

    def _rebuild(self) -> Divisible:
        model = self._build()
        return model if self._compress is None else self._compress.prepare(model)

    def _train(self, number: int) -> None:
        pipe = self._pipe
        assert pipe is not None
        # A refusal of this step is one before messages if none is sent from here on.
        own_flight_record.write(CALL, BEGIN, "minibatch")
        x, t = pipe.my_part(*models.minibatch(self._case, number))
        skipped = getattr(self._optimizer, "n_skipped", 0)
        accumulates = self._case.life.accumulates
        optimizer = self._optimizer if self._case.seed % 2 else None
        result = pipe.step(x, t, optimizer, accumulate=number in accumulates)
        is_part = number + 1 in accumulates
        if not is_part:
            self._optimizer.update()
        if self._compress is not None and not is_part:
            self._compress.advance(number + 1, (number + 1) / 10)
        if getattr(self._optimizer, "n_skipped", 0) > skipped:
            self._record.skipped.append(number)
        self._record.add("step", dict(result))
        gradients = {}
        is_late, self._awaits = self._awaits, self._way.has_two_versions
        if self._has_plain_gradients and is_late == self._awaits:
            gradients = {
                path: param.grad
                for stage in pipe.stages.values()
                for path, param in stage.namedparams()
                if param.grad is not None and not getattr(param, "is_streamed", False)
            }
        self._record.add("gradients", gradients)

    @property
    def _has_plain_gradients(self) -> bool:
        # Otherwise they are scaled, or corrected late.
        return not (
            self._case.update.loss_scale
            or self._way.is_double_buffered
            or dict(self._way.options).get("overlap_minibatches") is True
        )

    def _happen(self, event: Event, number: int) -> None:
        if event.way is not None:
            self._resume(event.way)
            return
        pipe = self._pipe
        if pipe is None:
            return
        x, t = pipe.my_part(*models.minibatch(self._case, number))
        if event.name == "evaluate":
            self._record.add("evaluate", pipe.evaluate(x, t))
        elif event.name == "predict":
            outputs = pipe.predict(x)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            replica = pipe.replica
            named = {f"{i} of {replica}": y for i, y in enumerate(outputs)}
            self._record.add("predict", named)
        elif event.name == "reset":
            pipe.reset_states()
        elif event.name == "move":
            self._flush()
            rebalance(pipe, self._optimizer, list(event.cuts), self._rebuild)
        elif event.name == "shrink":
            # No call of the pipeline: what the one before has sent does not count.
            own_flight_record.begin_call(0, number, event.name)
            self._compress.shrink()
        elif event.name == "caught":
            self._catch()
        else:
            raise ValueError(f"there is no event {event.name!r}")

    def _catch(self) -> None:
        """Makes mistakes that all ranks refuse, and goes on."""
        pipe = self._pipe
        for wrong in (
            lambda: load_snapshot(f"{self._folder}/none", pipe, self._optimizer),
            lambda: rebalance(pipe, self._optimizer, [0, 1, 0], self._rebuild),
        ):
            try:
                wrong()
            except Exception:
                continue
            raise AssertionError("a mistake was not refused")

    def _resume(self, way: Way) -> None:
        """Saves a snapshot, and goes on from it in another way."""
        self._n_snapshots += 1
        path = f"{self._folder}/snapshot_{self._n_snapshots}"
        if self._pipe is not None:
            self._flush()
            self._pipe.confirm_update()
            save_snapshot(path, self._pipe, self._optimizer, state=self._saved())
            self._end()
        self._meet()
        self._start(way)
        if self._pipe is not None:
            state = self._saved()
            loading = path, self._pipe, self._optimizer
            load_snapshot(*loading, state=state, strict=self._is_strict)
        self._meet()
        # Ranks that come in have seen nothing of what was before.
        names = self._all.bcast([entry.name for entry in self._record.entries], root=0)
        for name in names[len(self._record.entries) :]:
            self._record.add(name, {})

    def _flush(self) -> None:
        """Applies the gradients of the last minibatch, if they come late."""
        assert self._pipe is not None
        if self._way.has_two_versions and self._pipe.flush():
            self._optimizer.update()
        self._awaits = False

    def _saved(self) -> dict[str, Any]:
        return {} if self._compress is None else {"compress": self._compress}

    def _end(self) -> None:
        assert self._pipe is not None
        grid = self._pipe.grid
        self._pipe.close()
        if grid is not None:
            grid.close()

    def _state(self) -> dict[str, Any]:
        """Returns the arrays of this rank's stages."""
        found: dict[str, Any] = {}
        assert self._pipe is not None
        for stage in self._pipe.stages.values():
            for path, param in stage.namedparams():
                found[f"parameter {path}"] = np.array(param.array)
                if not self._case.update.loss_scale:
                    for name, value in (param.update_rule.state or {}).items():
                        found[f"{name} of {path}"] = np.array(value)
            for path, link in stage.namedlinks():
                for name in ("avg_mean", "avg_var"):
                    if hasattr(link, name):
                        found[f"{name} of {path}"] = getattr(link, name)
            if self._way.n_replicas > 1:
                # Each replica has the rows of its own samples.
                continue
            for path, link in carrying(stage, stage.layer_range[0]):
                for name in declared(link):
                    rows = getattr(link, place_of(name))
                    if rows is not None:
                        found[f"state {name} of {path}"] = rows
        return found
