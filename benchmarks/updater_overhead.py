"""The cost of the trainer on a pipeline, beside the steps it makes.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.updater_overhead

The paper's 32 fully connected layers are trained in three ways, which take turns:

* ``step`` and ``optimizer.update`` on a minibatch that is there;
* the same on minibatches that are read, by an iterator and a converter;
* ``Trainer.run`` with a ``PipelineUpdater``: reading, sending targets, agreeing when
  to stop, observations, ``LogReport`` and ``PrintReport`` after every minibatch.

The third to the second is the overhead of the trainer; what it costs to read depends on
the data set. Recording what every rank does, for the timeline, is part of every step.
"""

from __future__ import annotations

import io
import tempfile

import chainer
from chainer import training
from chainer.dataset import concat_examples
from chainer.training import extensions

from benchmarks.common.perceptron import step_seconds
from benchmarks.common.perceptron_run import PerceptronRun
from benchmarks.common.results import alternate, ratios
from pipeline import PipelineUpdater


def main() -> None:
    """Runs the comparison that the arguments ask for."""
    run = PerceptronRun.of_arguments("updater_overhead", __doc__)
    args, comm, result, pipe, optimizer, x, t = run
    data = chainer.datasets.TupleDataset(x, t)
    iterator = chainer.iterators.SerialIterator(data, args.batch)
    updater = PipelineUpdater(iterator, optimizer, pipe)

    def steps() -> None:
        for _ in range(args.steps):
            pipe.step(x, t)
            optimizer.update()

    def steps_of_what_is_read() -> None:
        for _ in range(args.steps):
            batch = concat_examples(iterator.next()) if pipe.is_first else (None, t)
            pipe.step(*batch)
            optimizer.update()

    def trainer() -> None:
        end = updater.iteration + args.steps
        with tempfile.TemporaryDirectory() as out:
            run = training.Trainer(updater, (end, "iteration"), out)
            report = extensions.LogReport(trigger=(1, "iteration"))
            run.extend(report, trigger=(1, "iteration"))
            entries = ["iteration", "main/loss", "pipeline/bubble"]
            printed = extensions.PrintReport(entries, out=io.StringIO())
            run.extend(printed, trigger=(1, "iteration"))
            run.run()

    variants = {
        "step and update": steps,
        "read, step and update": steps_of_what_is_read,
        "trainer": trainer,
    }
    for variant in variants.values():
        variant()
    seconds = alternate(
        variants, args.rounds, lambda variant: step_seconds(comm, variant, 0.0005)
    )
    result.write(f"{'':24} {'ms':>9}   ratio to the steps alone, and to the one above")
    before = base = seconds["step and update"]
    for name, values in seconds.items():
        each = 1e3 * sorted(values)[len(values) // 2] / args.steps
        result.write(
            f"{name:24} {each:9.2f}   {ratios(values, base)}  {ratios(values, before)}"
        )
        before = values
    result.save()


if __name__ == "__main__":
    main()
