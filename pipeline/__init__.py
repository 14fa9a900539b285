"""Pipeline-parallel training of Divisible models over MPI.

::

    planning           profiles of layers, and the plan that runs fastest

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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "messages.communicator": ["DisagreementError", "StallError", "abort_on_error"],
        "messages.point_to_point": [
            "recv_data",
            "recv_grad",
            "send_data",
            "send_grad",
        ],
        "pipeline": ["Pipeline"],
        "runner": ["ActionError"],
        "snapshots.extension": ["snapshot"],
        "snapshots.files": ["Snapshot", "SnapshotError", "latest_snapshot"],
        "snapshots.save_and_load": ["load_snapshot", "save_snapshot"],
        "snapshots.tools": ["export_npz", "import_npz", "repartition"],
        "training.evaluator": ["PipelineEvaluator", "predict"],
        "training.shuffle": ["SeededShuffle"],
        "training.signals": ["StopOnSignal"],
        "training.updater": ["PipelineUpdater"],
    },
)
