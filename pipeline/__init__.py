"""Pipeline-parallel training of Divisible models over MPI.

::

    pipeline         the calls of a training script: step, evaluate, predict
    state            its stages, its plan, its numbers, its description
    between_steps    its optimizers, its times, its end
    with_copies      its copies in the memory of hosts
    internals        parts of a pipeline, for packages of this project

    start            the arguments of all ranks, checked and compared
    step             the steps of minibatches, and the runner of schedules
    stages           forward and backward of the layers of one stage
    calls            messages and comparisons of ranks in each call
    hooks            hooks and updates of optimizers that have a part of the model

    training         updater and evaluator for Chainer's trainer
    snapshots        training runs on disk
    copies           training runs in the memory of hosts
    exports          trained models for other libraries
    rebalancing      layers that move to other ranks while a pipeline trains
    supervision      runs that are started again when a rank is lost
    watching         the state of a run in files, for a terminal and a report
    smoke            hosts and links, measured and judged before a run
    porting          training scripts rewritten for a pipeline
    compressing      smaller models by trying: "divisible compress"
    command_line     the command line

    scripts          runs a training script: "divisible run", "python -m pipeline"
    chainermn        the paper's own functions, and a transport over ChainerMN
    trainer_lines    lines for a terminal, beside a trainer's progress bar

Names are imported when they are first used. If a launcher has started several ranks,
the import of this package also calls :func:`abort_on_error`. Then an exception on one
rank ends all, even before there is a pipeline. The import does not start MPI.
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
        "pipeline.copies.extension": ["memory_copies"],
        "pipeline.pipeline": ["Pipeline"],
        "pipeline.rebalancing.extension": ["Rebalance"],
        "pipeline.rebalancing.moving": ["rebalance"],
        "pipeline.step.action_error": ["ActionError"],
        "pipeline.snapshots.background": ["wait_for_snapshot"],
        "pipeline.snapshots.finding": ["latest_snapshot"],
        "pipeline.snapshots.errors": ["SnapshotError"],
        "pipeline.snapshots.extension": ["snapshot"],
        "pipeline.snapshots.files": ["Snapshot"],
        "pipeline.snapshots.loading": ["load_snapshot"],
        "pipeline.snapshots.saving": ["save_snapshot"],
        "pipeline.snapshots.npz_files": ["export_npz", "import_npz"],
        "pipeline.snapshots.repartitioning": ["repartition"],
        "pipeline.training.evaluator": ["PipelineEvaluator", "predict"],
        "pipeline.training.logger_report": ["LoggerReport"],
        "pipeline.training.shuffle": ["SeededShuffle"],
        "pipeline.training.signals": ["StopOnSignal"],
        "pipeline.training.timeline_report": ["TimelineReport"],
        "pipeline.training.updater": ["PipelineUpdater"],
        "pipeline.watching.progress_line": ["ProgressLine"],
        "pipeline.watching.run_status": ["RunStatus"],
    },
)

if is_one_of_several():
    __getattr__("abort_on_error")()
