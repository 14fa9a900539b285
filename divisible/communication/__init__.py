"""MPI and arrays: how ranks send, wait, agree and stop, without Chainer.

::

    errors          errors of waits and comparisons
    waiting         waits that yield the core, and end
    tags            the tags of all messages
    launchers       how this process was started
    aborting        the end of all ranks after an error on one
    guard           a parent process of each rank, which reports what ended the rank
    leaving         what a rank does at its end, also by ``os._exit``
    flight_record   the last actions and messages of a rank
    flight_files    the files of flight records, and when they are removed
    flight_search   the flight records of the newest job, or of a process
    flight_table    the entries of flight records, by time
    flight_report   conclusions from flight records: which rank waits for which
    wait_queries       questions to other ranks: which ranks are missing from a wait
    exit_notices       notices of ranks that have ended their script
    late_numbers    numbers of other ranks that are read when asked for
    late_objects    objects of other ranks that are read when asked for
    collectives     operations of all ranks: gather, broadcast, clocks
    agreement       arguments that all ranks compare before they begin
    attempts        calls that succeed on all ranks, or fail on all
    communicators   this package's own communicators: making and freeing them
    busy            communicators with messages under way, which must not be freed
    parameter_sums  a number for each parameter of all ranks
    signatures      tensors, and their shapes and dtypes
    static_shapes   shapes of messages that follow from the number of samples
    buffers         the memory of messages while MPI uses it
    receive_buffers arrays that messages come into
    wire            wire dtypes: one entry for each
    narrowing       messages between stages in fewer bits
    transport       channels: post, send, receive
    shared_memory   memory that several processes of a host map
    windows         memory of a receiver, into which a sender puts messages
    one_sided       channels whose sender puts messages into a window

``comm`` is a ChainerMN communicator or an mpi4py one, everywhere.
"""
