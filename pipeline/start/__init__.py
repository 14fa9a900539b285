"""The start of a pipeline: arguments, checked on each rank and compared on all.

::

    arguments        what one rank can check of its arguments alone
    agreement        what follows from the announcements of all ranks: a pure function
    replicas         the same for replicas on a grid
    versions         the version of the package, the same on all ranks
    starting         sends and receives the announcements
"""
