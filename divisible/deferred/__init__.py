"""Models that are made part by part: no rank allocates the layers of another.

::

    layers        which layers of a model wait, and when they are made
    postponed     what is put off until a link is made
    search        finds what is not made yet in a layer
    scope         deferred_init(): parameters get deferred arrays
    array         an array that is not made yet
    recipe        how an array will be made: its writes in order
    keyed_random  random numbers by the key of a parameter
"""
