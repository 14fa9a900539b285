"""MPI and arrays: how ranks send, wait, agree and stop, without Chainer.

::

    errors          what waits and comparisons raise
    waiting         waits that yield the core, and end
    tags            who uses which tag
    launchers       how this process was started
    aborting        one way out for all ranks
    guard           a parent of each rank, which says what ended it
    leaving         what a rank tells the others at its end
    flight_record   the last actions and messages of a rank
    flight_files    where such records lie, and when they go
    flight_search   those of the newest job, or of a process
    flight_table    their lines, by time
    flight_report   what they say: who waits for whom
    roll_call       which ranks are missing where others wait
    farewells       which ranks have ended their script, and how much they have finished
    collectives     what all ranks do together: gather, broadcast, clocks
    agreement       arguments that all ranks compare before they begin
    attempts        calls that succeed on all ranks, or fail on all
    communicators   when those of our own are made and freed
    parameter_sums  a number for each parameter of all ranks
    signatures      tensors, and their shapes and dtypes
    buffers         where messages lie meanwhile
    transport       channels: post, send, receive

``comm`` is a ChainerMN communicator or an mpi4py one, everywhere.
"""
