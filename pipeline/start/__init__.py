"""The start of a pipeline: arguments, checked on each rank and compared on all.

::

    opening          makes arguments of each rank from a plan, or an undivided model
    plans            combines a plan with the arguments given besides
    plan_agreement   compares the plans and arguments of all ranks
    plan_choice      measures and chooses a plan, for 'auto'
    schedule_choice  the schedule of "divisible run --schedule"
    found_machine    the machine to plan for, as the ranks find it
    undivided        the stages of a rank, cut from an undivided model
    description      a pipeline as a table
    arguments        arguments that one rank can check alone
    recomputed_runs  the argument recompute: a word, or layers
    agreement        compares the announcements of all ranks, by a pure function
    start_warnings   warnings of the ranks, from the announcements of all
    replicas         compares the replicas of a grid
    versions         compares the version of the package on all ranks
    starting         sends and receives the announcements
"""
