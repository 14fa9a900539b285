"""Rectangular mappings of unequal processors: how good they are, and how they settle.

::

    mappings    equation (8) of every mapping, for the paper's conditions
    settling    simulated remappings: L, R and thresholds
    simulated   the simulation
    efficiency  equation (11) on hosts
    changes     remapping while hosts change
    ranks       what the hosts do for both
    training    networks that train on them
"""
