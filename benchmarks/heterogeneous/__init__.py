"""Rectangular mappings of unequal processors: how good they are, and how they settle.

::

    mappings    equation (8) of every mapping, for the paper's conditions
    settling    simulated remappings: L, R and thresholds
    simulated   the simulation
"""
