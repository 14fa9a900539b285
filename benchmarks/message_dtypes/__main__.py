"""Steps per second, accuracy and errors by the dtype of messages between stages.

    python -m benchmarks.message_dtypes
    OMP_NUM_THREADS=1 python -m benchmarks.message_dtypes --accuracy
    OMP_NUM_THREADS=1 python -m benchmarks.message_dtypes --errors
    OMP_NUM_THREADS=1 python -m benchmarks.message_dtypes --feedback

The first command runs a perceptron and VGG16 on four emulated hosts, over links of some
rates. All dtypes take turns, with the same cuts: the best ones for float32, from
profiles of a whole core. The row *planned* has the dtypes that `best_plan` chooses for
these cuts from all others, edge by edge. The plan for the measured link within a host
should narrow no message.

With ``--accuracy`` the CNN of `examples/train` reads digits, in one process. The model
rounds at its cuts, which gives the same bits as a pipeline whose messages are narrowed.

With ``--errors`` the same CNN is trained for some steps. Then the output of each layer
but the last, and its gradient, are coded. The table has the root of the mean squared
error, relative to that of the numbers. The last column is for blocks of 32 numbers that
are rotated by a Hadamard matrix before they are coded in 4 bits.

With ``--feedback`` the CNN is trained with errors of gradients fed back, and with
activations sent as differences to those of the epoch before (`feedback`).

Where hosts cannot be emulated the benchmark reports that; see benchmarks/cluster.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.common.hosts import Hosts, add_hosts_arguments, prepare, run
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.message_dtypes.names import WHOLE

#: The module that runs on hosts.
ON_HOSTS = "benchmarks.message_dtypes.on_hosts"
MODELS = ("perceptron", "vgg16")
#: Rate of the links: how many times as fast as float32 int8 should be.
TARGETS = {"1gbit": None, "100mbit": 1.5, "20mbit": 2.0}
#: Points of accuracy that int8 may cost.
POINTS = 0.2


def main() -> None:
    """Runs the part that is asked for, and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--accuracy", action="store_true", help="train a CNN with each dtype")
    add("--errors", action="store_true", help="of activations and gradients")
    add("--feedback", action="store_true", help="train with what makes up for rounding")
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--rates", nargs="+", default=list(TARGETS), help="of the links")
    add("--hosts", type=int, default=4)
    add("--microbatches", type=int, default=8)
    add("--width", type=int, default=256, help="of the perceptron")
    add("--layers", type=int, default=8, help="of the perceptron")
    add("--batch", type=int, default=2048, help="samples of the perceptron")
    add("--images", type=int, default=64, help="samples of VGG16")
    add("--size", type=int, default=32, help="pixels of VGG16's images")
    add("--rounds", type=int, default=5)
    add("--timeout", type=float, default=3600, help="seconds of a table")
    add("--seeds", type=int, default=5, help="of the accuracies")
    add("--epochs", type=int, default=15, help="of the accuracies")
    add("--stages", type=int, nargs="+", default=[2, 4], help="of the accuracies")
    add("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.accuracy or arguments.errors or arguments.feedback:
        _in_one_process(arguments)
    else:
        prepare()
        _on_hosts(arguments)


def _in_one_process(arguments: argparse.Namespace) -> None:
    """Trains the CNN with each dtype, or shows what each does to its numbers."""
    # Here, because the process that only starts the hosts should not start MPI.
    from benchmarks.message_dtypes import digits
    from benchmarks.message_dtypes.feedback import write_feedback

    what = next(n for n in ("accuracy", "feedback", "errors") if vars(arguments)[n])
    result = Result(f"message_dtypes_{what}", arguments.output)
    result.write(command(), machine("numpy", "chainer", "scikit-learn"), "")
    size = arguments.stages, arguments.seeds, arguments.epochs
    if what == "accuracy":
        digits.write_accuracies(result, *size, POINTS)
    elif what == "feedback":
        write_feedback(result, *size)
    else:
        digits.write_errors(result)
    result.save()


def _on_hosts(arguments: argparse.Namespace) -> None:
    """Times steps on emulated hosts."""
    result = Result("message_dtypes", arguments.output)
    n, share = arguments.hosts, arguments.cpu / arguments.hosts
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{n} hosts with {share:g} of a core each; {arguments.microbatches}"
        f" microbatches, 1f1b; {arguments.rounds} rounds; median (min..max)",
    )
    local = run(Hosts(1, 1.6, None, ranks=2), ON_HOSTS, {"task": "link"}, 600)
    bandwidths = {rate: Hosts(n, share, rate).bandwidth for rate in arguments.rates}
    bandwidths["within a host"] = local["bandwidth"]
    for model in arguments.models:
        job = {
            "model": model,
            "microbatches": arguments.microbatches,
            "width": arguments.width,
            "layers": arguments.layers,
            "batch": arguments.batch if model == "perceptron" else arguments.images,
            "size": arguments.size,
            "rounds": arguments.rounds,
            "n_ranks": n,
            "speed": share,
            "bandwidths": bandwidths,
        }
        whole_core = Hosts(1, 1.0, None)
        plans = run(whole_core, ON_HOSTS, {"task": "plan", **job}, arguments.timeout)
        for rate in arguments.rates:
            hosts = Hosts(n, share, rate)
            step = {"task": "steps", **job, **plans[rate]}
            seconds = run(hosts, ON_HOSTS, step, arguments.timeout)
            _write_steps(result, model, rate, plans[rate], seconds)
        lines = plans["within a host"]["lines"]
        whole = all(f": {WHOLE}" in line for line in lines)
        result.write(
            "",
            f"{model} within a host, {local['bandwidth'] / 1e9:.1f} GB/s:"
            f" {'no message is narrowed: met' if whole else 'MISSED'}",
            *lines,
        )
    result.save()


def _write_steps(
    result: Result,
    model: str,
    rate: str,
    plan: dict,
    seconds: dict[str, list[float]],
) -> None:
    """Writes the table of a model at a rate."""
    result.write(
        "",
        f"{model} over links of {rate}, cut at {plan['cuts']}",
        f"{'':8} {'steps/s':>8}  times float32",
    )
    whole = seconds[WHOLE]
    for name, each in seconds.items():
        result.write(
            f"{name:8} {1 / statistics.median(each):8.3f}  {ratios(whole, each)}"
        )
    result.write(*plan["lines"])
    wanted = TARGETS.get(rate)
    if wanted is not None and "int8" in seconds:
        times = statistics.median(a / b for a, b in zip(whole, seconds["int8"]))
        word = "met" if times >= wanted else "MISSED"
        result.write(f"int8 {times:.2f} times float32, target {wanted:g}: {word}")


if __name__ == "__main__":
    main()
