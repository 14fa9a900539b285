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

    machine            speeds, memory and links of ranks
    conditions         the machine, samples and profiles that a plan was made for
    disk               a disk, and what layers cost whose weights are there
    memory             what stages hold and take
    gradient_exchange  what replicas send, and when, and what it takes
    stage_plan         what a plan expects of a stage
    plan               where a model is cut, and how it is run
    plan_fields        those of its fields that are lists
    exchange_plan      what its exchange of gradients costs
    plan_traffic       what the ranks of a plan send in a step
    partition          cuts so that the slowest stage is as fast as possible
    dynamic_program    the search for those cuts
    setting            a schedule with profiles, ranks and links, wherever it is cut
    configuration      one way to run a model
    candidates         it, cut and costed
    shared_memory      that of ranks with several stages
    bounds             the least that a step can take
    search_arguments   what best_plan() is told
    search             best_plan(): the fastest of them that fits
    prediction         predict(): what a plan takes, by simulation
    shares             whole numbers in the ratio of shares, for unequal replicas

    tables, plots, units   for people
"""
