"""Whatever happens to a rank, every rank ends soon and says why."""

import contextlib
import os
import re
import signal
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from benchmarks.cluster import cluster
from divisible import Divisible, Plan
from pipeline import Pipeline
from tests.support.emulated_hosts import need_emulated_hosts
from tests.support.loaded_python import loaded_project
from tests.support.matrix import matrix
from tests.support.mpiexec import on_ranks, refused_on_ranks, worker
from tests.support.processes import launcher, running

# From the fault to the end of all processes.
DEADLINE = 10
# Python, Chainer and MPI.
START_UP = 20
# What a pipeline waits for another rank: longer than the tests wait for the end of all
# ranks, which must not come of such a wait.
PATIENCE = 1000
N_RANKS = 3
RANKS_AND_TRANSPORTS = [
    (1, "mpi"),
    *(pytest.param(rank, "mpi", marks=pytest.mark.matrix) for rank in (0, 2)),
    *(
        pytest.param(rank, transport, marks=pytest.mark.matrix)
        for transport in ("rma", "chainermn")
        for rank in range(N_RANKS)
    ),
]


class SpillingFunction(chainer.FunctionNode):
    def forward(self, inputs):
        return inputs

    def backward(self, indexes, gradients):
        raise ArithmeticError("it spills")


class Bucket(chainer.Link):
    """Does nothing until it is told to spill."""

    spills = None

    def forward(self, x):
        if self.spills == "forward":
            raise ArithmeticError("it spills")
        return SpillingFunction().apply((x,))[0] if self.spills == "backward" else x


def buckets():
    """Two layers for each of three ranks."""
    layers = []
    for _ in range(N_RANKS):
        layers += [L.Linear(4, 4), Bucket()]
    return Divisible(*layers)


X = np.ones((6, 4), np.float32)
T = np.zeros(6, np.int32)


def make_pipeline(comm, timeout=PATIENCE, **options):
    model = buckets()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.01).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=3, timeout=timeout, **options)
    return pipe, stage, optimizer


def train(comm, timeout=PATIENCE, transport="mpi", n_steps=1_000_000):
    """Trains until something happens; says so when it is under way."""
    # One that starts late is not one that stopped.
    comm.Barrier()
    pipe, _, optimizer = make_pipeline(comm, timeout, transport=transport)
    for i in range(n_steps):
        pipe.step(X, T)
        optimizer.update()
        if i == 3:
            print(f"rank {comm.rank} trains in process {os.getpid()}", flush=True)


@contextlib.contextmanager
def training(n_ranks=N_RANKS, command=None, env=None, **options):
    """Starts ``train`` and yields the program and its ranks' process ids."""
    command = command or [launcher(), "-n", str(n_ranks)]
    arguments = [options.pop("timeout", PATIENCE), options.pop("transport", "mpi")]
    with running([*command, *loaded_project(), *worker(train, *arguments)], env) as it:

        def pids():
            assert it.process.poll() is None, it.output
            found = re.findall(r"rank (\d) trains in process (\d+)", it.output)
            return len(found) == n_ranks and {int(r): int(pid) for r, pid in found}

        yield it, it.wait_for(pids, START_UP)


@pytest.mark.parametrize("rank, transport", RANKS_AND_TRANSPORTS)
def test_a_killed_rank_ends_all(rank, transport):
    with training(transport=transport) as (program, pids):
        os.kill(pids[rank], signal.SIGKILL)
        assert program.wait(DEADLINE) != 0
        # mpiexec says it; the others are ended before they could notice.
        assert re.search("signal 9|SIGKILL|Killed", program.output), program.output


@pytest.mark.parametrize("number", [signal.SIGTERM, *matrix(signal.SIGINT)])
def test_ending_mpiexec_ends_all(number):
    with training(2) as (program, _):
        program.process.send_signal(number)
        assert program.wait(DEADLINE) != 0


def spill(comm, rank, when):
    pipe, stage, optimizer = make_pipeline(comm)
    for i in range(1_000_000):
        if i == 3 and comm.rank == rank:
            stage[1].spills = when
        pipe.step(X, T)
        optimizer.update()


@pytest.mark.parametrize(
    "rank, when",
    [
        (0, "backward"),
        (2, "forward"),
        *matrix(
            *(
                (rank, when)
                for rank in range(N_RANKS)
                for when in ("forward", "backward")
            )
        ),
    ],
)
def test_an_exception_in_a_layer(rank, when):
    output = refused_on_ranks(N_RANKS, spill, rank, when).output
    (message,) = re.findall("^.*ActionError: (.*)$", output, re.MULTILINE)
    # The first microbatch of all.
    for words in (
        f"{rank}{when[0].upper()}0 failed on rank {rank} ({when} of microbatch 0",
        f"stage {rank} with the layers {2 * rank} to {2 * rank + 1}",
        f"in layer {2 * rank + 1}, Bucket",
        "ArithmeticError: it spills",
    ):
        assert words in message, message


def fails(n_ranks, function, *args):
    """Calls a function that fails on one rank, which ends all, and says so once."""
    result = on_ranks(n_ranks, function, *args, timeout=START_UP + DEADLINE)
    assert result.returncode != 0
    assert "rank done" not in result.stdout
    assert result.stdout.count("ends all ranks") == 1, result.stdout
    return result.stdout


def failing_loss(comm):
    def lossfun(y, t):
        if comm.rank == comm.size - 1 and len(t) == 2:
            raise ArithmeticError("no loss")
        return F.softmax_cross_entropy(y, t)

    pipe, _, _ = make_pipeline(comm, lossfun=lossfun)
    while True:
        pipe.step(X, T)


def test_an_exception_in_lossfun():
    output = fails(N_RANKS, failing_loss)
    assert "2F0 failed on rank 2 (forward of microbatch 0" in output
    assert "after the last layer, in lossfun or accfun" in output
    assert output.count("ArithmeticError: no loss") == 2  # cause and message


def returning_a_list(comm):
    layers = [F.relu] * (comm.size - 1) + [lambda x: [x]]
    stage = Divisible(*layers).divide(comm.rank, comm.rank + 1)
    Pipeline(stage, comm, n_microbatches=2, timeout=10).predict(X)


def test_a_prediction_that_fails_has_no_loss_to_blame():
    output = refused_on_ranks(2, returning_a_list).output
    assert "1F0 failed on rank 1" in output
    assert "returned list" in output
    assert "lossfun" not in output


def failing_loss_backward(comm):
    def lossfun(y, t):
        return F.softmax_cross_entropy(SpillingFunction().apply((y,))[0], t)

    pipe, _, _ = make_pipeline(comm, lossfun=lossfun)
    while True:
        pipe.step(X, T)


def test_an_exception_in_the_backward_of_lossfun():
    output = refused_on_ranks(N_RANKS, failing_loss_backward).output
    assert "2B0 failed on rank 2 (backward of microbatch 0" in output
    assert "after the last layer, in lossfun or accfun" in output


def failing_script(comm, rank):
    pipe, _, _ = make_pipeline(comm)
    for i in range(1_000_000):
        pipe.step(X, T)
        if i == 3 and comm.rank == rank:
            raise KeyError("the user's own")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.matrix), 2])
def test_an_exception_between_steps(rank):
    output = fails(N_RANKS, failing_script, rank)
    assert f"rank {rank} of {N_RANKS} on " in output
    assert output.count("Traceback") == 1
    assert 'KeyError: "the user\'s own"' in output


@pytest.mark.parametrize("rank, transport", RANKS_AND_TRANSPORTS)
def test_a_stopped_rank(rank, transport):
    timeout = 3
    with training(N_RANKS, timeout=timeout, transport=transport) as (program, pids):
        os.kill(pids[rank], signal.SIGSTOP)
        assert program.wait(timeout + DEADLINE) != 0
        # A neighbour waits for the stopped rank; who waits for that neighbour may
        # notice at the same time.
        pattern = rf"waited {timeout} s for .*rank {rank} "
        assert re.search(pattern, program.output), program.output


def leave_early(comm, rank, how):
    pipe, stage, _ = make_pipeline(comm)
    for _ in range(3):
        pipe.step(X, T)
    if comm.rank == rank:
        if how == "exit":
            sys.exit("the script has had enough")
        if how == "return":
            return
        # In the midst of a call.
        stage[1].spills = "forward"
        if how == "exit within":
            stage[1].forward = sys.exit
        with contextlib.suppress(RuntimeError):
            pipe.step(X, T)
        return
    for _ in range(3):
        pipe.step(X, T)


@pytest.mark.parametrize(
    "rank, how",
    [
        (0, "return"),
        *matrix((1, "exit"), (2, "return")),
        (1, "exit within"),
        (0, "catch within"),
    ],
)
def test_a_rank_that_leaves_the_loop_early(rank, how):
    timeout = START_UP + DEADLINE
    result = on_ranks(N_RANKS, leave_early, rank, how, timeout=timeout)
    assert result.returncode != 0
    message = f"StallError: rank {rank} ended its script after call 3 of the pipeline"
    assert message in result.stdout


def close_early(comm):
    pipe, _, _ = make_pipeline(comm)
    with pipe:
        for i in range(3):
            if i == 2 and comm.rank == 1:
                break
            pipe.step(X, T)
    with pytest.raises(RuntimeError, match="this Pipeline is closed"):
        pipe.step(X, T)


def test_a_rank_that_closes_alone():
    output = fails(N_RANKS, close_early)
    assert "some ranks call step and others close" in output


@pytest.mark.parametrize("host", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_a_link_that_is_cut(host):
    need_emulated_hosts()
    timeout = 4
    with cluster([0.9, 0.9], overcommit=True) as hosts:
        command, env = hosts.launch(2, [])
        with training(2, command, env, timeout=timeout) as (program, _):
            hosts.link(host, False)
            # The rank behind the link cannot be reached by mpiexec and ends by itself.
            # What it has to say does not get through either.
            assert program.wait(timeout + DEADLINE) != 0
            # For an answer of the step, or of what follows it.
            assert f"waited {timeout} s for" in program.output
