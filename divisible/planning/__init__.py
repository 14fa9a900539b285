"""From the layers of a model to the plan that runs fastest, without MPI.

::

    layer_cost         what one layer costs
    profile            what each layer of a model costs
    measuring          profile(): measures a model
    layer_meter        layer after layer, each by itself
    timed_phases       how: forward, input gradients and weight gradients, timed
    stopwatch          seconds and peak memory of a call
    retained_arrays    what a graph holds between forward and backward
    optimizer_state    what an optimizer holds
    coding             how fast gradients are coded for the wire
    interpolation      a profile at another size of microbatch
    layer_sums         sums over its layers, and over those of stages

    per_rank           numbers for ranks or links: one for all, or one for each
    network            links between ranks, and between the stages on them
    machine            ranks, links and disks that a plan is made for
    conditions         the machine, samples and profiles that a plan was made for
    disk               a disk, and what layers cost whose weights are there
    gradient_exchange  what replicas send, and when, and what it takes
    unequal_replicas   parts of a minibatch for replicas of unequal speed

    plan               where a model is cut, and how it is run
    plan_fields        its fields, checked
    plan_traffic       what the ranks of a plan send in a step
    expected_costs     what it expects of a stage, and of the exchange of gradients

    cost_model         what a step of a schedule takes and holds, wherever it is cut
    possible_stages    the same of every stage that there could be
    dynamic_program    the search for the best cuts
    cuts               cuts by several methods
    partition          partition(): a model cut for one size of microbatch
    workload           a minibatch on a machine, from which cost models are made
    plan_simulation    simulate_plan(): the timeline of a plan

    search_space       the plans that a search tries
    cut_plan           one of them: uncut, cut, simulated
    cutting            it, cut so that it fits
    bounds             the least that a step can take
    moves              its step simulated, and its cuts moved
    alternatives       what was not chosen, and why
    search             best_plan(): the fastest plan that fits
    shares             whole numbers in the ratio of shares, for unequal replicas

    tables, plots, units   for people
"""
