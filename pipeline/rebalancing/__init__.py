"""Layers that move between the stages of a pipeline while it trains.

::

    extension    watches a trainer's stages, and moves layers when it pays
    log          the checks of a run in a file, and the hosts that fell behind
    stage_times  seconds that stages compute
    layer_costs  costs of layers, and which layers have other sizes than before
    rank_comparison  whether the speeds of ranks compare
    common_layer  speeds of ranks, from one layer that all of them compute
    decisions    whether to cut the model in other places, and where
    shares       the part of a minibatch that each replica should have
    trials       changes that are reversed if steps do not become shorter
    moving       moves layers, with all that belongs to them, by messages
    checking     refuses bad input before anything moves
    other_pipelines  refuses pipelines that have the old layers
    state        the arrays of a layer, by the keys of snapshots
    messages     arrays by key, from rank to rank

Names are imported when they are first used.
"""

from divisible.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "pipeline.rebalancing.decisions": ["Decision", "decide_cuts"],
        "pipeline.rebalancing.moving": ["Moved"],
    },
)
