"""Bad input ends every rank soon, with a message that says what to do."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan
from pipeline import Pipeline
from tests.mpiexec import on_ranks

DEADLINE = 10


def model(n_classes=3):
    return Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 5), L.Linear(5, n_classes))


def stage_of(comm, whole=None):
    whole = model() if whole is None else whole
    return whole.divide(*Plan.uniform(len(whole), comm.size).range(comm.rank))


X = np.ones((6, 4), np.float32)
T = np.zeros(6, np.int32)


def too_many_ranks(comm):
    Plan.uniform(len(model()), comm.size)


def slice_out_of_range(comm):
    Pipeline(model().divide(comm.rank, comm.rank + 3), comm, 2)


def layers_left_out(comm):
    Pipeline(model().divide(2 * comm.rank, 2 * comm.rank + 1), comm, 2)


def layers_twice(comm):
    Pipeline(model().divide(comm.rank, comm.rank + 3), comm, 2)


def different_models(comm):
    Pipeline(stage_of(comm, model(3 + comm.rank)), comm, 2)


def different_depths(comm):
    whole = model()
    if comm.rank:
        whole.append(F.relu)
    Pipeline(stage_of(comm, whole), comm, 2)


def different_microbatches(comm):
    Pipeline(stage_of(comm), comm, 2 + comm.rank)


def different_schedules(comm):
    Pipeline(stage_of(comm), comm, 2, schedule=["gpipe", "1f1b"][comm.rank])


def different_transports(comm):
    Pipeline(stage_of(comm), comm, 2, transport=["mpi", "chainermn"][comm.rank])


def different_widths(comm):
    Pipeline(stage_of(comm), comm, 2, wire_dtype=[None, "float16"][comm.rank])


def different_accuracies(comm):
    Pipeline(stage_of(comm), comm, 2, accfun=[None, F.accuracy][comm.rank])


def unknown_schedule(comm):
    Pipeline(stage_of(comm), comm, 2, schedule="2f2b")


def no_microbatches(comm):
    Pipeline(stage_of(comm), comm, 0)


def not_a_stage(comm):
    Pipeline(chainer.Sequential(F.relu), comm, 2)


def not_a_communicator(comm):
    Pipeline(stage_of(comm), "world", 2)


def missing_x(comm):
    Pipeline(stage_of(comm), comm, 2).step(None, T)


def missing_t(comm):
    Pipeline(stage_of(comm), comm, 2).step(X, None)


def empty_batch(comm):
    Pipeline(stage_of(comm), comm, 2).step(X[:0], T[:0])


def untrainable_dtype(comm):
    Pipeline(stage_of(comm), comm, 2).step(X.astype(np.complex64), T)


def double_into_single(comm):
    Pipeline(stage_of(comm), comm, 2).step(X.astype(np.float64), T)


def label_too_large(comm):
    Pipeline(stage_of(comm), comm, 2).step(X, T + 3)


def label_negative(comm):
    pipe = Pipeline(stage_of(comm), comm, 2)
    pipe.step(X, T - 1)  # -1 is the label to ignore
    pipe.step(X, T - 2)


def fewer_targets(comm):
    Pipeline(stage_of(comm), comm, 2).step(X, T[:4])


def wrong_width(comm):
    Pipeline(stage_of(comm), comm, 2).step(X[:, :3], T)


@pytest.mark.parametrize(
    "n_ranks, function, words",
    [
        (5, too_many_ranks, ["4 layers cannot be cut into 5 stages"]),
        (3, slice_out_of_range, ["divide(2, 5)", "out of range"]),
        (2, layers_left_out, ["rank 1 has the layers 2 to 2, but layer 1 comes next"]),
        (2, layers_twice, ["rank 1 has the layers 1 to 3, but layer 3 comes next"]),
        (2, different_models, ["rank 0 and rank 1 built different models: layer 3"]),
        (2, different_depths, ["rank 0 divided a model of 4 layers, rank 1 one of 5"]),
        (2, different_microbatches, ["n_microbatches differs"]),
        (2, different_schedules, ["schedule differs between rank 0 and rank 1"]),
        (2, different_transports, ["transport differs", "chainermn"]),
        (2, different_widths, ["wire_dtype differs"]),
        (2, different_accuracies, ["lossfun and accfun give differs"]),
        (2, unknown_schedule, ["2f2b", "1f1b"]),
        (2, no_microbatches, ["n_microbatches"]),
        (2, not_a_stage, ["must be a Divisible"]),
        (2, not_a_communicator, ["comm must be a ChainerMN communicator"]),
        (2, missing_x, ["x is None on rank 0"]),
        (2, missing_t, ["t is None on rank 1"]),
        (2, empty_batch, ["no samples"]),
        (2, untrainable_dtype, ["complex64, which Chainer cannot train on"]),
        (2, double_into_single, ["x is float64", "astype('float32')"]),
        (2, label_too_large, ["microbatch 0 has the label 3", "3 outputs"]),
        (2, label_negative, ["microbatch 0 has the label -2"]),
        (2, fewer_targets, ["3 samples but 2 targets"]),
        (2, wrong_width, ["0F0 failed on rank 0", "layer 0, Linear(in_size=4"]),
    ],
)
def test_bad_input(n_ranks, function, words):
    result = on_ranks(n_ranks, function, timeout=DEADLINE)
    assert result.returncode != 0
    assert "rank done" not in result.stdout
    for word in words:
        assert word in result.stdout


def test_an_error_of_all_ranks_is_printed_once():
    result = on_ranks(3, different_depths, timeout=DEADLINE)
    assert result.stdout.count("Traceback") == 1
