"""Layers that move between the stages of a pipeline while it trains.

::

    extension    watches a trainer's stages, and moves layers when it pays
    log          what it writes, and which hosts fell behind
    stage_times  how long stages compute
    layer_costs  what layers cost, and that they have become others
    rank_comparison  whether the speeds of ranks compare
    common_layer  how fast ranks are, by one layer that all of them compute
    decisions    whether to cut anew, and where
    shares       which part of a minibatch each replica should have
    trials       changes that are taken back where steps became no shorter
    moving       moves layers: all that belongs to them, by messages
    checking     what is refused before anything moves
    state        what belongs to which layer, as snapshots know it
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
