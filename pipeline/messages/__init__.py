"""What ranks send each other, and how they wait.

::

    progress             keeps messages moving while a rank computes
    chainermn_transport  a transport over ChainerMN, to measure against
    point_to_point       the paper's own, one array at a time
    tie_exchange         gradients of parameters that several stages share
    calls                whether all ranks make the same calls
    ranks                what else they tell each other
"""
