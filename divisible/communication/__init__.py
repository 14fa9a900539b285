"""MPI and arrays: how ranks send, wait, agree and stop, without Chainer.

::

    errors          what waits and comparisons raise
    waiting         waits that yield the core, and end
    tags            who uses which tag
    aborting        one way out for all ranks
    collectives     what all ranks do together: duplicate, gather, broadcast, clocks
    parameter_sums  a number for each parameter of all ranks
    signatures      tensors, and their shapes and dtypes
    buffers         where messages lie meanwhile
    transport       channels: post, send, receive

``comm`` is a ChainerMN communicator or an mpi4py one, everywhere.
"""
