"""A step: a minibatch on its way through the pipeline.

::

    step             a minibatch, from x and t to means and gradients
    layout           its parts, made for the layers that a rank has now
    runner           runs the schedule, on stages and over a transport
    cutting          cuts x and t into microbatches
    action_error     the error of an action, with its place
    making           makes stages, runner and exchanges for the layers of this rank
    current_schedule the schedule that runs now, and the trial of others
    step_end         the means, which the last stage's rank sends to the others
    message_shapes   shapes of all messages, found before the first one
    trial_stages     copies of stages, which pass on a few samples
    progress         polls for messages while layers compute
    late_dict        a result whose values are read when asked for
    overlap          features for which minibatches do not overlap

and features that only some runs use::

    results          reports of layers, joined outputs
    refusals         objects that may refuse to train
    carried_counts   number of samples that the states of layers belong to
    empty_replicas   replicas that have no samples in a minibatch
    evaluating       the context of forwards without a backward
    fused_layers     chains of layers that run as one function
    early_exchanges  gradients that replicas exchange while a step computes
    early_updates    streamed layers that are updated while a step computes
    confirming       updates that are confirmed after they have been made
    unconfirmed_forwards  forwards that run before the update is confirmed
    two_versions     steps whose gradients come one minibatch late
    accumulated      gradients of earlier steps, to which a step adds its own
"""
