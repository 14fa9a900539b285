"""Calls of a pipeline: all ranks make the same ones, and tell each other results.

::

    call_agreement   whether all ranks make the same calls
    ranks            what ranks tell each other besides arrays
    replicas         the grid of replicas, and the names of its ranks
    tie_exchange     gradients of parameters that several stages share
"""
