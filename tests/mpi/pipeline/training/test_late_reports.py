"""A trainer does not wait between minibatches, and its log has the same numbers."""

from __future__ import annotations

import json
import os

import chainer
import numpy as np
import pytest
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions, triggers
from mpi4py import MPI

from pipeline import PipelineEvaluator, PipelineUpdater, Rebalance, snapshot
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks, on_ranks
from tests.support.overlap import deep_mlp, hold_up, make

TAG = 7
#: The number of minibatches in an epoch.
EPOCH = 4


def samples():
    return TupleDataset(*make_batches([8 * EPOCH], n_in=8)[0])


def make_trainer(comm, out, stop=(2, "epoch"), updater=PipelineUpdater, **options):
    """Returns a trainer of a pipeline with seeded data."""
    pipe, optimizer = make(comm, rule=chainer.optimizers.MomentumSGD(0.1), **options)
    iterator = SerialIterator(samples(), 8, shuffle=True) if pipe.is_first else None
    return Trainer(updater(iterator, optimizer, pipe), stop, out=out)


class Ahead(PipelineUpdater):
    """Holds up the last of two ranks in minibatch 3, until the first one is in 4."""

    comm = MPI.COMM_NULL

    def update(self):
        if self.iteration == 3 and self.comm.rank == 0:
            self.comm.send("in minibatch 4", 1, TAG)
        if self.iteration == 2 and self.comm.rank == 1:
            hold_up(self.pipeline, lambda: self.comm.recv(source=0, tag=TAG))
        super().update()


STOPS = {
    "epochs": lambda: (2, "epoch"),
    "early": lambda: triggers.EarlyStoppingTrigger(
        (1, "epoch"), "validation/main/loss", max_trigger=(2, "epoch")
    ),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_trainer_does_not_wait_for_the_last_rank(stop, tmp_path):
    assert_on_ranks(2, _run_ahead, str(tmp_path), stop)


def _run_ahead(comm, out, stop):
    Ahead.comm = comm
    options = {"updater": Ahead, "overlap_minibatches": True}
    trainer = make_trainer(comm, out, STOPS[stop](), **options)
    pipe = trainer.updater.pipeline
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    trainer.extend(
        extensions.LogReport(
            ["main/loss", "pipeline/bubble"], (5, "iteration"), filename="few"
        ),
        name="few",
    )
    trainer.extend(extensions.PrintReport(["main/loss"]))
    trainer.extend(extensions.FailOnNonNumber())
    trainer.extend(extensions.ProgressBar())
    last = SerialIterator(samples(), 8, repeat=False, shuffle=False)
    trainer.extend(PipelineEvaluator(last if pipe.is_first else None, pipe))
    trainer.run()
    pipe.close()
    log = trainer.get_extension("LogReport").log
    assert [entry["iteration"] for entry in log] == [EPOCH, 2 * EPOCH]


def test_log_snapshots_and_parameters_are_the_same(tmp_path):
    assert_on_ranks(2, _compare_logs, str(tmp_path), timeout=120)


def _compare_logs(comm, out):
    late, waiting, resumed = (
        _log(comm, os.path.join(out, name), overlap, resume)
        for name, overlap, resume in [
            ("late", True, None),
            ("waiting", False, None),
            ("resumed", True, "late"),
        ]
    )
    assert comm.allreduce(late == waiting, MPI.LAND)
    # A run that goes on after six minibatches ends as the others do.
    assert comm.allreduce(resumed[0] == late[0], MPI.LAND)
    assert comm.allreduce(resumed[2] == late[2], MPI.LAND)


def _log(comm, out, overlap, resume):
    """Returns the logs, the snapshot after six minibatches, and the parameters."""
    trainer = make_trainer(comm, out, (3, "epoch"), overlap_minibatches=overlap)
    pipe = trainer.updater.pipeline
    keys = ["main/loss", "main/accuracy"]
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    few = extensions.LogReport(keys, (4, "iteration"), filename="few")
    trainer.extend(few, name="few")
    trainer.extend(extensions.PrintReport(["epoch", *keys]))
    if resume is not None:
        there = os.path.join(os.path.dirname(out), resume, "snapshot_iter_6")
        trainer.extend(snapshot(resume=there), trigger=(100, "epoch"))
    else:
        trainer.extend(snapshot(), trigger=(6, "iteration"))
    trainer.run()
    logs = []
    for name in ("LogReport", "few"):
        log = json.loads(json.dumps(trainer.get_extension(name).log))
        for entry in log:
            times = [k for k in entry if k.startswith("pipeline/") or "time" in k]
            assert name == "few" or len(times) == 5
            for key in times:
                del entry[key]
        logs.append(log)
    params = [p for stage in pipe.stages.values() for p in stage.params()]
    bits = [param.array.tobytes() for param in params]
    pipe.close()
    saved = resume or _contents(os.path.join(out, "snapshot_iter_6"))
    return logs, saved, bits


def _contents(folder):
    """Returns the bytes of all arrays of a snapshot, but for measured times."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".npz"):
            with np.load(os.path.join(folder, name), allow_pickle=False) as arrays:
                for key in arrays.files:
                    is_log = "extensions/LogReport/" in key or key.endswith("/_log")
                    if not (is_log or key.endswith("elapsed_time")):
                        found[name, key] = arrays[key].tobytes()
    return found


def test_a_request_to_stop_ends_all_ranks_at_the_same_minibatch(tmp_path):
    assert_on_ranks(2, _stop, str(tmp_path))


def _stop(comm, out):
    trainer = make_trainer(comm, out, (20, "epoch"), overlap_minibatches=True)

    def ask(trainer):
        if trainer.updater.iteration == 5 and comm.rank == 1:
            trainer.updater.request_stop(3)

    trainer.extend(ask, trigger=(1, "iteration"))
    trainer.run()
    updater = trainer.updater
    ends = comm.allgather((updater.iteration, updater.stop_code))
    assert ends[0] == ends[1] and 5 < ends[0][0] <= 8 and ends[0][1] == 3
    updater.pipeline.close()


def test_ranks_whose_stop_triggers_differ_agree(tmp_path):
    assert_on_ranks(2, _stop_differently, str(tmp_path))


def _stop_differently(comm, out):
    stop = (1 + comm.rank, "epoch")
    trainer = make_trainer(comm, out, stop, overlap_minibatches=True)
    trainer.run()
    assert comm.allgather(trainer.updater.iteration) == [EPOCH, EPOCH]
    trainer.updater.pipeline.close()


def test_values_of_an_extension_of_ones_own_are_plain(tmp_path):
    assert_on_ranks(2, _read_at_once, str(tmp_path))


def _read_at_once(comm, out):
    trainer = make_trainer(comm, out, (1, "epoch"), overlap_minibatches=True)
    seen = []

    def look(trainer):
        seen.append(json.loads(json.dumps(trainer.observation)))
        assert type(trainer.observation["main/loss"]) is float

    trainer.extend(look, trigger=(1, "iteration"))
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    trainer.run()
    (entry,) = trainer.get_extension("LogReport").log
    for name in ("main/loss", "pipeline/bubble"):
        assert np.isclose(entry[name], np.mean([each[name] for each in seen]))
    trainer.updater.pipeline.close()


def test_rebalance_waits_or_is_refused(tmp_path):
    assert_on_ranks(2, _rebalance, str(tmp_path))


def _rebalance(comm, out):
    for overlap in (True, "auto"):
        trainer = make_trainer(comm, out, overlap_minibatches=overlap)
        trainer.extend(Rebalance(deep_mlp, log=False))
        if overlap is True:
            with pytest.raises(ValueError, match="does not go together with Rebalance"):
                trainer.run()
            continue
        trainer.run()
        pipe = trainer.updater.pipeline
        assert "minibatches do not overlap: Rebalance" in str(pipe)
        pipe.close()


def diverge(comm, out):
    trainer = make_trainer(comm, out, (9, "epoch"), overlap_minibatches=True)
    trainer.extend(extensions.FailOnNonNumber())

    def spoil(trainer):
        if trainer.updater.iteration == 3 and comm.rank == 1:
            stage = next(iter(trainer.updater.pipeline.stages.values()))
            next(stage.params()).array[...] = np.inf

    trainer.extend(spoil, trigger=(1, "iteration"), priority=200)
    trainer.run()


def test_fail_on_non_number_ends_all_ranks(tmp_path):
    result = on_ranks(2, diverge, str(tmp_path), timeout=40)
    assert result.returncode != 0
    assert "rank 1 of 2" in result.stdout and "diverge. R.I.P." in result.stdout


def test_extensions_find_the_parameters_of_a_run_that_waits(tmp_path):
    assert_on_ranks(2, _read_parameters, str(tmp_path))


def _read_parameters(comm, directory):
    """Some updates are clipped, after which extensions read parameters."""
    found = {}
    for overlap in (True, False):
        trainer = make_trainer(
            comm, f"{directory}/{overlap}", overlap_minibatches=overlap
        )
        updater, seen = trainer.updater, []
        clipping = chainer.optimizer_hooks.GradientClipping(1e-2)
        updater.get_optimizer("main").add_hook(clipping)
        (stage,) = updater.pipeline.stages.values()

        @chainer.training.make_extension(trigger=(1, "iteration"))
        def read(trainer, stage=stage, seen=seen, clipping=clipping):
            seen.append([param.array.tobytes() for param in stage.params()])
            clipping.threshold = 1e-2 if trainer.updater.iteration % 3 else 1e6

        trainer.extend(read)
        trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
        trainer.extend(extensions.ExponentialShift("lr", 0.9), trigger=(1, "iteration"))
        trainer.run()
        found[overlap] = seen, [param.array.tobytes() for param in stage.params()]
        if overlap:
            assert updater.pipeline.internals.step.confirming.late.n_taken_back
        updater.pipeline.close()
    assert found[True] == found[False]
