"""The computation of one rank: microbatches through a stage's layers, and back.

::

    stage             forward and backward, with the activations held in between
    segment           a run of layers, computed or recomputed as one
    groups            how layers run on several microbatches as one
    stage_groups      groups on their way through a stage: joined, run, taken apart
    group_masks       dropout masks of each microbatch of a group
    stage_skips       skip connections of a stage, and the routes of their tensors
    held              what is held in between: the graph, or only the inputs
    held_elsewhere    microbatches held outside memory between forward and backward
    leaving_arrays    takes their arrays out of a graph, and puts them back
    batch_statistics  running averages that see the whole minibatch
    two_versions      a stage that keeps the weights of the minibatch before
    undeclared_states refuses states that layers keep between microbatches
    carried_rows      the declared states, of all samples of a minibatch
    kept_values       values in attributes of layers that last from call to call
    loss              loss and accuracy behind the last layer
    counted_mean      a mean over the samples of all microbatches that count
    sightings         how many samples count, observed while a loss computes
    labels            the class labels of a loss
    uncalled          layers that get a size at a first call, which is still to come
    reports           values that layers pass to chainer.report

Nothing in here imports MPI.
"""
