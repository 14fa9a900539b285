"""Pipeline-parallel training of Divisible models over MPI.

::

    pipeline         what a training script calls: step, evaluate, predict
    planned          its plan: what is in force, and an optimizer for it
    between_steps    its calls that pass no minibatch
    internals        its parts, for packages of this project

    start            arguments of all ranks, compared, become what they agreed on
    step             a minibatch on its way: step, runner
    stages           forward and backward of the layers of one stage
    calls            what ranks compare and tell each other in each call
    hooks            hooks and updates of optimizers that have a part of the model

    training         updater and evaluator for Chainer's trainer
    snapshots        runs on disk
    exports          trained models for other libraries
    rebalancing      layers that move to other ranks while a pipeline trains
    command_line     the command line

    scripts          runs a training script: "divisible run", "python -m pipeline"
    chainermn        the paper's own means, and a transport over ChainerMN
    trainer_lines    lines for a terminal, beside a trainer's progress bar

Names are imported when they are first used. The import of this package does one thing
besides: where a launcher has started several ranks, it calls :func:`abort_on_error`, so
that an exception on one ends all, also before there is a pipeline. It starts no MPI.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.communication.launchers import is_one_of_several  # noqa: E402
from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "divisible.communication.aborting": ["abort_on_error"],
        "divisible.communication.errors": ["DisagreementError", "StallError"],
        "pipeline.chainermn": [
            "recv_data",
            "recv_grad",
            "send_data",
            "send_grad",
        ],
        "pipeline.pipeline": ["Pipeline"],
        "pipeline.rebalancing.extension": ["Rebalance"],
        "pipeline.rebalancing.moving": ["rebalance"],
        "pipeline.step.runner": ["ActionError"],
        "pipeline.snapshots.background": ["wait_for_snapshot"],
        "pipeline.snapshots.finding": ["latest_snapshot"],
        "pipeline.snapshots.errors": ["SnapshotError"],
        "pipeline.snapshots.extension": ["snapshot"],
        "pipeline.snapshots.files": ["Snapshot"],
        "pipeline.snapshots.loading": ["load_snapshot"],
        "pipeline.snapshots.saving": ["save_snapshot"],
        "pipeline.snapshots.tools": ["export_npz", "import_npz", "repartition"],
        "pipeline.training.evaluator": ["PipelineEvaluator", "predict"],
        "pipeline.training.shuffle": ["SeededShuffle"],
        "pipeline.training.signals": ["StopOnSignal"],
        "pipeline.training.timeline_report": ["TimelineReport"],
        "pipeline.training.updater": ["PipelineUpdater"],
    },
)

if is_one_of_several():
    __getattr__("abort_on_error")()
