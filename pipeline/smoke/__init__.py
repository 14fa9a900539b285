"""``divisible smoke``: measures hosts and links before a run, and judges them.

::

    on_ranks    what all ranks do together, and rank 0's result
    launching   starts the ranks; finds hosts that do not answer
    results     verdicts as text, a file of hosts, a machine for plans
    judging     verdicts on hosts, from facts
    measuring   the facts of this rank
    links       the facts of links between neighbouring ranks
    facts       facts about ranks and links
"""
