"""Training runs that are started again when a rank is lost.

::

    supervisor   starts the ranks, and decides what follows their end
    growth       looks for hosts that are back, while ranks train
    orders       orders of "divisible control", and their answers
    fleet        the hosts of a run: used, spare, lost
    hosts        names of hosts, as users and batch systems write them
    launching    commands that start ranks on certain hosts
    ranks        one start of the ranks, by a launcher such as mpiexec
    records      the flight records that the ranks of a start leave
    endings      the reason of an end, from the exit code and the flight records
    budget       the number of restarts, which grows again with progress

A supervisor does not train and does not load MPI. All that a run needs to continue is
in its snapshots.
"""
