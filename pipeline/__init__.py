"""Pipeline-parallel training of Divisible models over MPI.

::

    pipeline         what a training script calls: step, evaluate, predict
    arguments        what one rank can check of its arguments alone
    agreement        what all ranks compare when a pipeline is made
    start            the arguments of all ranks become a layout
    versions         the version of the package, the same on all ranks
    parts            stages, runner and what else depends on where layers lie
    minibatch_pass   a minibatch's way: what happens around the run of a schedule
    current_schedule the schedule that runs now, and the trial of another one
    runner           runs it, on stages and over a transport
    stages           forward and backward of the layers of one stage
    fused_layers     chains of layers that run as one function
    feed             the minibatch of a call, cut where it is read
    results          what a call returns on every rank
    replicas         replicas of a pipeline, on a grid
    call_agreement   whether all ranks make the same calls
    trainer_lines    lines for a terminal, beside a trainer's progress bar
    ranks            what ranks tell each other besides arrays
    tie_exchange     gradients of parameters that several stages share
    global_hooks     hooks that look at the whole model, on all ranks' optimizers
    model_norm       the norm of all ranks' gradients
    keyed_noise      noise on gradients that does not depend on the cut
    update_agreement whether hooks, and copies of a parameter, are alike on all ranks
    optimizers       what a rank's optimizers have been set up with
    parameter_paths  the paths of a rank's parameters
    progress         keeps messages moving while a rank computes
    scripts          runs a training script: "divisible run", "python -m pipeline"
    chainermn        the paper's own means, and a transport over ChainerMN

    training         updater and evaluator for Chainer's trainer
    snapshots        runs on disk
    exports          trained models for other libraries
    rebalancing      layers that move to other ranks while a pipeline trains
    command_line     the command line

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
        "pipeline.runner": ["ActionError"],
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
