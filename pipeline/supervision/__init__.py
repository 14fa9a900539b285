"""Training runs that are started again when a rank is lost.

::

    supervisor   starts the ranks, and decides what follows their end
    ranks        one start of the ranks, by a launcher such as mpiexec
    endings      the reason of an end, from the exit code and the flight records
    budget       the number of restarts, which grows again with progress

A supervisor does not train and does not load MPI. All that a run needs to continue is
in its snapshots.
"""
