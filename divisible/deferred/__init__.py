"""Models that are made part by part: no rank allocates the layers of another.

::

    layers        the deferred layers of a model, and how they are made
    postponed     actions that wait until a link is made
    search        the deferred arrays in a layer
    scope         deferred_init(): parameters get deferred arrays
    array         an array that is not made yet
    recipe        how an array will be made: its writes in order
    keyed_random  random numbers by the key of a parameter
"""
