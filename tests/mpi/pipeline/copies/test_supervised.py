"""``divisible run --keep-going`` goes on from copies in memory."""

import os
import re
import signal

from pipeline import latest_snapshot, memory_copies, snapshot
from tests.support.fault_injection import folder_in_memory
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import launcher, running
from tests.support.snapshot_training import saved_arrays, small_trainer
from tests.support.supervisors import divisible

N_ITERATIONS, KILLED_AT = 12, 5
SCRIPT = """
import sys
from mpi4py import MPI
from tests.mpi.pipeline.copies.test_supervised import train
train(MPI.COMM_WORLD, *sys.argv[1:])
"""


def train(comm, folder, mark=""):
    """Trains; where there is no mark yet, rank 1 makes it and is killed."""
    trainer, _ = small_trainer(comm, f"{folder}/out", (N_ITERATIONS, "iteration"))
    memory = f"{folder}/memory"
    os.makedirs(memory, exist_ok=True)
    trainer.extend(memory_copies(directory=memory))
    disk = snapshot(resume="auto")
    trainer.extend(disk, trigger=(N_ITERATIONS, "iteration"))

    def disturb(trainer):
        is_time = trainer.updater.iteration == KILLED_AT
        if comm.rank == 1 and is_time and mark and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.extend(disturb, trigger=(1, "iteration"), priority=-200)
    trainer.run()


def result(folder):
    arrays = saved_arrays(latest_snapshot(folder / "out"))
    return {key: array.tobytes() for key, array in arrays.items()}


def test_a_killed_rank_costs_no_minibatch():
    with folder_in_memory() as folder:
        (folder / "alone").mkdir()
        assert_on_ranks(1, train, str(folder / "alone"))
        lost = folder / "lost"
        lost.mkdir()
        (lost / "train.py").write_text(SCRIPT)
        script = str(lost / "train.py"), str(lost), str(lost / "mark")
        given = "run", "--keep-going", "-n", "2", "--launcher", launcher()
        with running(divisible(*given, *script)) as program:
            assert program.wait(90) == 0, program.output
            output = program.output
        (line,) = re.findall(r"^resumed from .*$", output, re.MULTILINE)
        assert f"the memory of hosts: iteration {KILLED_AT}, saved" in line
        assert "killed by signal 9" in output
        assert result(lost) == result(folder / "alone")
        assert os.listdir(lost / "memory") == []
