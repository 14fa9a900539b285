"""Pipeline-parallel training of Divisible models over MPI.

::

    pipeline           what a training script calls; checks of its arguments, the
                       layout of the stages on the ranks, the automatic schedule
    runner             executes a schedule, on stages and over a transport
    stages             forward and backward of the layers
    messages           what ranks send each other

    training           updater and evaluator for Chainer's trainer
    snapshots          runs on disk
    commands           the command line

Names are imported when they are first used.
"""

from divisible.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "divisible.communication.aborting": ["abort_on_error"],
        "divisible.communication.errors": ["DisagreementError", "StallError"],
        "pipeline.messages.point_to_point": [
            "recv_data",
            "recv_grad",
            "send_data",
            "send_grad",
        ],
        "pipeline.pipeline": ["Pipeline"],
        "pipeline.runner": ["ActionError"],
        "pipeline.snapshots.extension": ["snapshot"],
        "pipeline.snapshots.files": ["Snapshot", "SnapshotError", "latest_snapshot"],
        "pipeline.snapshots.save_and_load": ["load_snapshot", "save_snapshot"],
        "pipeline.snapshots.tools": ["export_npz", "import_npz", "repartition"],
        "pipeline.training.evaluator": ["PipelineEvaluator", "predict"],
        "pipeline.training.shuffle": ["SeededShuffle"],
        "pipeline.training.signals": ["StopOnSignal"],
        "pipeline.training.updater": ["PipelineUpdater"],
    },
)
