"""The calls of a pipeline: all ranks make the same ones, and exchange results.

::

    call_agreement   compares the calls of all ranks
    differences      errors for calls that differ
    carried_samples  samples whose states layers carry, compared in each call
    ranks            messages among ranks besides activations and gradients
    replicas         the grid of replicas, and the names of its ranks
    tie_exchange     gradients of parameters that several stages share
"""
