"""The runs of Figs. 8 and 11 to 13: networks, learning-rate policies, ways to exchange.

Learning rates fall at the same parts of the training as in the paper, whose numbers of
steps are ten times those of CaffeNet here, and a hundred times those of GoogLeNet. The
constants of Algorithm 1 are those of the paper.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.data_parallel.simulated import Task, Way
from benchmarks.paper_exchange.networks import CaffeNet, GoogLeNet

#: Names of the trainings, and of the ways that several figures compare.
CAFFENET, QUICK, SLOW = "CaffeNet", "GoogLeNet quick", "GoogLeNet slow"
FLOAT, FP8, GRADIENT = "float", "fp8, 1e-5", "fp8, gradient"
ONE_LEVEL, EIGHT_NODES = "fp8, all-reduce", "fp8, 8 nodes"
EIGHT_NODES_ONE_LEVEL = "fp8, 8 nodes, all-reduce"
#: GPUs in a node of the paper, and of 2 and of 8 nodes.
NODE, TWO_NODES, MANY_NODES = 8, 16, 64
#: Part of CaffeNet's training after which the paper looks at its gradients.
LOOK = 3000 / 7200


def every_2_ninths(done: float) -> float:
    """Returns the factor of CaffeNet: a tenth after each 1,600 of 7,200 steps."""
    return 0.1 ** int(done * 4.5)


def root_of_rest(done: float) -> float:
    """Returns the factor of GoogLeNet's quick training: (1 - i / 38400)^0.5."""
    return (1 - done) ** 0.5


def every_32nd(done: float) -> float:
    """Returns the factor of GoogLeNet's slow training: 0.96 after each 5,120 steps."""
    return 0.96 ** int(done * 160000 / 5120)


TASKS = {
    CAFFENET: Task(
        TWO_NODES, 64, 100, 720, 0.005, CaffeNet, every_2_ninths, 5e-4, True
    ),
    QUICK: Task(TWO_NODES, 32, 100, 384, 0.02, GoogLeNet, root_of_rest, 2e-4, True),
    SLOW: Task(TWO_NODES, 32, 100, 1600, 0.02, GoogLeNet, every_32nd, 2e-4, True),
}


def fp8(epsilon: float = 1e-5, local_size: int = NODE, ratio: bool = True) -> Way:
    """Returns Algorithm 1 as printed: all parameters in 8 bits."""
    options = {"strategy": "oyama2017", "epsilon": epsilon, "local_size": local_size}
    return Way(options, exempts=False, ratio=ratio)


class Experiment(NamedTuple):
    """One training in one way.

    Attributes:
        task: Name of the training.
        way: Way to exchange gradients.
        has_seeds: Whether it is repeated with other seeds.
        n_replicas: Number of replicas.
    """

    task: str
    way: Way
    has_seeds: bool = False
    n_replicas: int = TWO_NODES


#: All experiments by the name of the training and that of the way.
EXPERIMENTS = {
    (CAFFENET, FLOAT): Experiment(CAFFENET, Way(), True),
    (CAFFENET, FP8): Experiment(CAFFENET, fp8(), True),
    (CAFFENET, "fp8, 1e-4"): Experiment(CAFFENET, fp8(1e-4)),
    (CAFFENET, "fp8, 1e-3"): Experiment(CAFFENET, fp8(1e-3)),
    (CAFFENET, GRADIENT): Experiment(CAFFENET, fp8(ratio=False), True),
    (CAFFENET, ONE_LEVEL): Experiment(CAFFENET, fp8(local_size=1)),
    (CAFFENET, EIGHT_NODES): Experiment(CAFFENET, fp8(), False, MANY_NODES),
    (CAFFENET, EIGHT_NODES_ONE_LEVEL): Experiment(
        CAFFENET, fp8(local_size=1), False, MANY_NODES
    ),
    (QUICK, FLOAT): Experiment(QUICK, Way(), True),
    (QUICK, FP8): Experiment(QUICK, fp8(), True),
    (SLOW, FLOAT): Experiment(SLOW, Way()),
    (SLOW, FP8): Experiment(SLOW, fp8()),
}


class Scale(NamedTuple):
    """The size of all experiments.

    Attributes:
        part: Part of the steps.
        common: Steps in float32 that all ways have in common.
        seeds: Number of seeds of the experiments that are repeated.
    """

    part: float = 1.0
    common: int = 100
    seeds: int = 3

    def task(self, experiment: Experiment) -> Task:
        """Returns the training of an experiment."""
        task = TASKS[experiment.task]
        steps = max(self.common + 20, round(task.steps * self.part))
        return task._replace(
            n_replicas=experiment.n_replicas, common=self.common, steps=steps
        )


#: The scale of ``--quick``.
SMALL = Scale(part=0.4, common=60, seeds=1)


class Job(NamedTuple):
    """One run: an experiment's names, and a seed."""

    task: str
    way: str
    seed: int


def jobs(scale: Scale) -> list[Job]:
    """Returns all runs, the longest ones first."""
    found = [
        Job(*names, seed)
        for names, experiment in EXPERIMENTS.items()
        for seed in range(scale.seeds if experiment.has_seeds else 1)
    ]
    return sorted(found, key=lambda job: -_gradients(job, scale))


def _gradients(job: Job, scale: Scale) -> int:
    """Returns how many gradients of a replica a run computes."""
    experiment = EXPERIMENTS[job.task, job.way]
    n_replicas = experiment.n_replicas if experiment.way.options else 1
    return scale.task(experiment).steps * n_replicas
