"""Models that are made part by part: no rank allocates the layers of another.

::

    scope         deferred_init(): parameters get keys in place of arrays
    array         an array that is not made yet
    layers        which layers wait, and when they are made
    keyed_random  random numbers by the key of a parameter
"""
