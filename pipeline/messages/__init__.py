"""What ranks send each other, and how they wait.

::

    communicator         MPI as it is used here: waits that end, tags, one way out
    message              tuples of tensors, and how they are described
    transport            moves them from stage to stage
    buffers              where they lie meanwhile
    progress             keeps them moving while a rank computes
    chainermn_transport  the same over ChainerMN, to measure against
    point_to_point       the paper's own, one array at a time
    tie_exchange         gradients of parameters that several stages share
    calls                whether all ranks make the same calls
    ranks                what else they tell each other
"""
