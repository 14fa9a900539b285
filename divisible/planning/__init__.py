"""From the layers of a model to the plan that runs fastest, without MPI.

::

    layer_cost         the costs of one layer
    profile            the costs of each layer of a model
    measuring          profile(): measures a model
    layer_meter        layer after layer, each by itself
    held_arrays        arrays that layers hold, each counted once
    timed_phases       forward, input gradients and weight gradients, timed
    stopwatch          seconds and peak memory of a call
    retained_arrays    arrays that a graph holds between forward and backward
    optimizer_state    the memory that an optimizer needs
    coding             the speed of coding gradients for the wire
    interpolation      a profile at another size of microbatch
    layer_sums         sums over the layers of a profile, and of stages

    memory_tracing     trace_memory(): the memory of a model, from shapes alone
    layer_memory       the memory of layers, and of ranks by a schedule
    shape_tracing      calls of layers that compute nothing
    shape_rules        the shapes that Chainer's functions return, and what they hold
    shape_arrays       arrays that have a shape and no numbers

    per_rank           numbers for ranks or links: one for all, or one for each
    network            links between ranks, and between the stages on them
    machine            ranks, links and disks that a plan is made for
    conditions         the machine, samples and profiles that a plan was made for
    joint_weights      costs of weight gradients in groups
    disk               a disk, and the costs of layers with weights on it
    recomputed_layers  the costs of layers whose forward runs again
    rounding           activations that wait as bfloat16: bytes, seconds
    gradient_exchange  the exchange between replicas: bytes, start, seconds
    unequal_replicas   parts of a minibatch for replicas of unequal speed

    plan               the cuts of a model, and how it is run
    plan_fields        the fields of a plan, checked
    plan_texts         a plan in a line of text
    plan_traffic       bytes that the ranks of a plan send in a step
    expected_costs     the expected costs of stages and of the exchange
    stage_costs        the costs of the stages of a schedule, from those of layers
    messages           the dtypes of messages, chosen for each edge and direction
    message_plan       these dtypes, as a plan has them

    cost_model         seconds and bytes of a schedule's step, for any cuts
    possible_stages    the costs of every possible stage
    dynamic_program    the search for the best cuts
    stage_starts       the best start of each stage, compiled
    cuts               cuts by several methods
    layer_choice       the layers of a stage to run again, so that it fits
    cheapest_runs      the search for them, compiled
    recomputed_cuts    cuts with such layers
    partition          partition(): a model cut for one size of microbatch
    workload           a minibatch on a machine, from which cost models are made
    plan_simulation    simulate_plan(): the timeline of a plan
    plan_order         the shortest order of a plan's actions

    search_space       the plans that a search tries
    cut_plan           a plan in the search: uncut, cut, simulated
    cutting            cuts of a plan, so that it fits
    bounds             the least that a step can take
    moves              simulations of a plan, and moves of its cuts
    alternatives       the plans that were not chosen, and why
    search             best_plan(): the fastest plan that fits
    shares             whole numbers in the ratio of shares

    tables             profiles and plans as tables of text
    plots              profiles as pictures
    units              numbers with units
"""
