"""How long a run stands still when a rank is lost.

::

    divisible run    starts ..................... notices, starts 4 again ...
    rank 2           trains, copies ... killed    |  loads  | trains, copies ...
                                        |----- seconds ------| next minibatch
"""
