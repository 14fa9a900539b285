"""A step: a minibatch on its way through the pipeline.

::

    step             a minibatch, from x and t to means and gradients
    runner           runs the schedule, on stages and over a transport
    making           stages, runner and what else depends on where layers lie
    current_schedule the schedule that runs now, and the trial of another one

and what only some runs ask for::

    results          means over replicas, reports of layers, joined outputs
    refusals         objects that may refuse to train
    carried_counts   how many samples carried states are of
    empty_replicas   replicas that have no samples in a minibatch
    fused_layers     chains of layers that run as one function
    early_exchanges  gradients that replicas exchange while a step computes
    early_updates    streamed layers that are updated while a step computes
"""
