"""Parameters and results of minibatches that overlap have the bits of those that wait.

Results are read only at the end of a run, so that ranks get as far apart as they can.
"""

from __future__ import annotations

import chainer
import chainer.functions as F
import numpy as np
import pytest
from mpi4py import MPI

from mixed_precision import MixedPrecision
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.overlap import deep_mlp, make

#: Width at which the messages are larger than MPI's buffers.
LARGE = 256

SCHEDULES = ("1f1b", "zb_h1", "zb_v", "gpipe")
OPTIMIZERS = {
    "SGD": lambda: chainer.optimizers.SGD(0.1),
    "MomentumSGD": lambda: chainer.optimizers.MomentumSGD(0.1),
    "NesterovAG": lambda: chainer.optimizers.NesterovAG(0.05),
    "Adam": lambda: chainer.optimizers.Adam(0.01),
    "RMSprop": lambda: chainer.optimizers.RMSprop(0.01),
    "AdaDelta": lambda: chainer.optimizers.AdaDelta(),
}
CLIPPING = chainer.optimizer_hooks.GradientClipping
HOOKS = {
    "none": lambda: [],
    "decay": lambda: [chainer.optimizer_hooks.WeightDecay(1e-3)],
    "lasso": lambda: [chainer.optimizer_hooks.Lasso(1e-3)],
    "noise": lambda: [chainer.optimizer_hooks.GradientNoise(1e-3)],
    "clipping": lambda: [CLIPPING(0.1)],
    "both": lambda: [chainer.optimizer_hooks.WeightDecay(1e-3), CLIPPING(0.1)],
}


@pytest.mark.parametrize(
    "schedule",
    ["1f1b", "zb_h1", "zb_v", pytest.param("gpipe", marks=pytest.mark.matrix)],
)
def test_overlap_changes_no_bit(schedule):
    runs = [(schedule, "MomentumSGD", "none"), (schedule, "Adam", "decay")]
    runs.append((schedule, "SGD", "none", {"counts_late": True}))
    assert_on_ranks(2, _compare_runs, [*runs, (schedule, "SGD", "clipping")])


@pytest.mark.parametrize(
    "transport, schedules",
    [
        ("mpi", ["zb_h2", "zb_v"]),
        ("rma", ["zb_v"]),
        ("chainermn", ["zb_h2"]),
        pytest.param("rma", ["zb_h2"], marks=pytest.mark.matrix),
        pytest.param("chainermn", ["zb_v"], marks=pytest.mark.matrix),
    ],
)
def test_overlap_changes_no_bit_of_messages_that_wait_for_their_receiver(
    transport, schedules
):
    """They do not fit into MPI's buffers. Sends of ``'chainermn'`` block."""
    options = {"width": LARGE, "transport": transport}
    runs = [(schedule, "Adam", "none", options) for schedule in schedules]
    assert_on_ranks(3, _compare_runs, runs)


def combination(seed):
    """Returns a random schedule, optimizer and hooks, and options of a pipeline."""
    rng = np.random.RandomState(seed)
    options = {
        "n_microbatches": int(rng.randint(2, 7)),
        "recompute": str(rng.choice(["never", "except_last", "always"])),
        "weight_groups": int(rng.choice([1, 2])),
        "is_mixed": bool(rng.uniform() < 0.3),
        "counts_late": bool(rng.uniform() < 0.3),
        "transport": str(rng.choice(["mpi", "rma", "chainermn"])),
        "width": int(rng.choice([8, LARGE], p=[0.7, 0.3])),
    }
    names = [*SCHEDULES, "zb_h2", "interleaved"], [*OPTIMIZERS], [*HOOKS]
    return (*(str(rng.choice(some)) for some in names), options)


@pytest.mark.matrix
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_overlap_changes_no_bit_in_random_combinations(n_ranks):
    runs = [combination(seed) for seed in range(100 * n_ranks, 100 * n_ranks + 14)]
    assert_on_ranks(n_ranks, _compare_runs, runs, timeout=300)


def _compare_runs(comm, runs):
    for run in runs:
        late, waiting = (_train(comm, overlap, *run) for overlap in ("auto", False))
        assert comm.allreduce(late == waiting, MPI.LAND), run


def masked_loss(y, t):
    """Returns a loss, and the number of samples that it counts."""
    return F.softmax_cross_entropy(y, t), int((t >= 0).sum())


def _train(comm, overlap, schedule, optimizer, hooks, options=None):
    """Returns the results, and the bits of this rank's parameters."""
    options = dict(options or {})
    width, is_late = options.pop("width", 8), options.pop("counts_late", False)
    rule = OPTIMIZERS[optimizer]()
    if options.pop("is_mixed", False):
        rule = MixedPrecision(rule, comm=comm, loss_scale=256.0)
        options["loss_scale"] = rule.loss_scale
    if is_late:
        options["lossfun"] = masked_loss
    options["overlap_minibatches"] = overlap
    np.random.seed(0)
    pipe, optimizer = make(comm, schedule, deep_mlp(width), rule, **options)
    for hook in HOOKS[hooks]():
        optimizer.add_hook(hook)
    results = []
    sizes = [n * width // 8 for n in (12, 12, 7, 12, 12)]
    for x, t in make_batches(sizes, n_in=width):
        t[:: 3 if is_late else len(t)] = -1
        results.append(pipe.step(x, t))
        optimizer.update()
    results.append(pipe.evaluate(x, t))
    params = [p for stage in pipe.stages.values() for p in stage.params()]
    pipe.close()
    return [dict(each) for each in results], [p.array.tobytes() for p in params]
