"""Layers that move between the stages of a pipeline while it trains.

::

    moving     moves them: all that belongs to a layer, by messages
    checking   what is refused before anything moves
    state      what belongs to which layer, as snapshots know it
    messages   arrays by key, from rank to rank
"""
