"""The computation of one rank: microbatches through a stage's layers, and back.

::

    stage             forward and backward, with what is kept in between
    segment           a run of its layers, computed or recomputed as one
    held              what is held in between: the graph, or only the inputs
    batch_statistics  running averages that see the whole minibatch
    undeclared_states refuses states that layers carry between microbatches
    carried_rows      the declared ones, of all samples of a minibatch
    kept_values       what lies in attributes of layers from call to call
    loss              what follows the last layer
    counted_mean      a mean over the samples of all microbatches that count
    sightings         how many count, seen while a loss computes
    labels            the class labels that it takes
    uncalled          what gets a size at a first call, which is still to come
    reports           what layers tell chainer.report

Nothing in here imports MPI.
"""
