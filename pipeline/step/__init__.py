"""A step: a minibatch on its way through the pipeline.

::

    minibatch_pass   what happens around the run of a schedule
    parts            stages, runner and what else depends on where layers lie
    feed             the minibatch of a call, cut where it is read
    current_schedule the schedule that runs now, and the trial of another one
    runner           runs it, on stages and over a transport
    progress         keeps messages moving while a rank computes
    results          what a call returns on every rank
    fused_layers     chains of layers that run as one function
    early_exchanges  gradients that replicas exchange while a step computes
    early_updates    streamed layers that are updated while a step computes
"""
