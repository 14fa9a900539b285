"""Rectangular mappings of unequal processors: how good they are, and how they settle.

::

    mappings      equation (8) of every mapping, for the paper's conditions
    settling      simulated remappings: L, R and thresholds
    simulated     the simulation

    efficiency    the command: equation (11) on hosts, Fig. 11
    points        conditions, numbers of hosts, methods
    shares        shares of a core that hosts ask for
    rounds        the part of each host: methods take turns
    step_model    simulated seconds of a step
    simulated_points
                  points without hosts
    measured      points that were measured
    page          the page: pictures, tables, findings
    picture       efficiencies by hosts, and checks
    findings      the paper's findings, and those of measured points
    parameters    the findings on L, R and thresholds, simulated

    nettalk       the command: NETtalk trained to the paper's criterion
    learning      the part of each host

    changes       the command: remapping while hosts change
    following     the part of each host
    training      networks that train on hosts
"""
