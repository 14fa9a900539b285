"""The start of a pipeline: arguments, checked on each rank and compared on all.

::

    opening          a plan, or an undivided model, becomes arguments of each rank
    plans            a plan, and what is given besides: what runs
    plan_agreement   what the ranks say of a plan, compared
    plan_choice      a plan that is measured and chosen: 'auto'
    found_machine    the machine that it is for, as the ranks find it
    undivided        the stages of a rank, of an undivided model
    description      a pipeline as a table
    arguments        what one rank can check of its arguments alone
    agreement        what follows from the announcements of all ranks: a pure function
    replicas         the same for replicas on a grid
    versions         the version of the package, the same on all ranks
    starting         sends and receives the announcements
"""
