"""Peak memory of VGG16 in 20 microbatches on one rank, against the prediction.

    OMP_NUM_THREADS=1 python -m benchmarks.microbatch_memory

The layers are profiled at three sizes of microbatch. For each plan, the peak of
:func:`divisible.simulate_plan` is compared with that of live arrays in two steps, by
tracemalloc, which NumPy reports to. Parameters are left out of both, because they are
there before. Plans differ in their groups: weight gradients of some microbatches as one
product, and a stage that takes some microbatches as one.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.accumulation import workloads
from benchmarks.common.results import Result, command, machine
from divisible import Divisible, Plan, profile
from divisible.planning.plan_simulation import simulate_plan
from pipeline import Pipeline

MIB = 2**20
#: Samples of a microbatch at which layers are profiled.
PROFILED = (4, 20, 80)
#: The largest part by which a prediction may be wrong.
TARGET = 0.1


def plans_of(n_layers: int) -> dict[str, Plan]:
    """Returns the plans by name, all with one stage."""
    cuts = [0, n_layers]
    return {
        "1F1B": Plan(cuts, 20, "1f1b"),
        "1F1B, W in groups of 4": Plan(cuts, 20, "1f1b", weight_groups=4),
        "1F1B, W in one group": Plan(cuts, 20, "1f1b", weight_groups=20),
        "1F1B, 4 microbatches as one": Plan(cuts, 20, "1f1b", stage_groups=[4]),
        "GPipe": Plan(cuts, 20, "gpipe"),
        "GPipe, W in one group": Plan(cuts, 20, "gpipe", weight_groups=20),
    }


def peak(model: Divisible, plan: Plan, x: Any, t: Any) -> float:
    """Returns the peak of live arrays in two steps, in MiB, without parameters."""
    gc.collect()
    tracemalloc.start()
    stage = model.divide(None, None)
    with Pipeline(stage, MPI.COMM_SELF, plan=plan, accfun=None) as pipe:
        for _ in range(2):
            pipe.step(x, t)
    found = tracemalloc.get_traced_memory()[1] / MIB
    tracemalloc.stop()
    model.cleargrads()
    return found


def main() -> None:
    """Profiles, measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    np.random.seed(0)
    workload = workloads(quick=False)["vgg16"]
    (x, t), model = workload.batch(), workload.build()
    profiles = [profile(model, x[:n], t[:n], repeat=1) for n in PROFILED]
    parameters = sum(param.array.nbytes for param in model.params()) / MIB
    result = Result("microbatch_memory", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "chainer"),
        f"{workload.title}, 20 microbatches; MiB beside {parameters:.0f} of parameters",
        "",
        f"{'':28}{'predicted':>10}{'measured':>10}",
    )
    worst = 0.0
    for name, plan in plans_of(len(model)).items():
        timeline = simulate_plan(plan, profiles, batch=len(x))
        predicted = timeline.peak_memory[0] / MIB - parameters
        measured = peak(model, plan, x, t)
        worst = max(worst, abs(predicted / measured - 1))
        result.write(f"{name:28}{predicted:10.0f}{measured:10.0f}")
    verdict = "met" if worst <= TARGET else "MISSED"
    result.write("", f"largest error {worst:.1%}, wanted {TARGET:.0%}: {verdict}")
    result.save()


if __name__ == "__main__":
    main()
