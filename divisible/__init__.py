"""Models for pipeline-parallel training: lists of layers that can be cut.

A model is a :class:`Divisible`: a list of layers, cut by position. A :class:`Plan` has
the positions of the cuts. :func:`profile` measures the layers, :func:`partition` cuts
them into stages of equal time, and :func:`best_plan` also chooses how to run them:

.. code-block:: python

    from divisible import Divisible, deferred_init, partition, profile

    with deferred_init(seed=0):  # no memory yet
        model = VGG16()
    plan = partition(profile(model, x, t), n_stages=comm.size)
    stage = model.divide(*plan.range(comm.rank))  # this stage's memory only

::

    model             Divisible: divide, view, tie
    fusible           layers that run one after another; chains of them as one function
    layer_pass        one pass through the layers of a part
    layer_list        a link whose children have positions
    undivided         the knowledge of a stage about the model it was cut from
    ties, transposes  shared parameters; parameters that a layer uses transposed
    skips             stash and pop
    carried_state     state that a layer keeps from minibatch to minibatch
    effects           whether a call of a layer may change something outside
    moved_layers      layers that move into and out of a stage
    random_streams    random numbers by layer and microbatch
    late_seeds        seeds of NumPy's generator that wait until a layer draws
    early_draws       weights that a serial script draws in its first minibatch
    running_averages  averages that a function moves by itself, as a PyTorch module
    layer_texts       layers as texts, to be compared and read
    minibatch         x and t as arrays, cut into microbatches, joined
    dtypes            floating-point types of layers and losses
    files             files that are either complete or not there
    free_memory       memory that is left for a copy, on each place with a limit
    side_files        files that a run can do without: logs and pictures
    weighted_means    means of numbers with weights
    number_lists      arguments of users: one for all, or one for each
    keywords          errors that name the right keyword for a wrong one
    records           plans, profiles and timelines from files, with checked fields
    terminal_text     text from files, made safe for a terminal
    notebook_html     objects as HTML, for notebooks
    user_warnings     warnings that point to the line of a script
    optimizer_wrapper an optimizer that wraps another one
    optimizer_hooks   the hooks of an optimizer, or of an update rule
    rule_state        the state that an update rule keeps for its parameter
    link_parts        parts that the class of a link gets
    unconfirmed_update  an update that other ranks have not confirmed, and its copies
    placement         the numbering of ranks in a grid of replicas and stages
    lazy_names        names of a package that are imported when they are first used

    schedules         schedules as plain data: proved, simulated, drawn
    communication     MPI and arrays: how ranks send, wait, agree and stop
    deferred          models that are made part by part
    backward          the backward of a graph, whole or in halves
    planning          from the layers of a model to the plan that runs fastest
    chains            chains of Chainer, taken apart into lists of layers
    streaming         weights in slower memory, fetched segment by segment
    explore           a page to play with schedules

Names are imported when they are first used, so that schedules can be planned and
simulated, and timelines drawn, without Chainer and MPI.
"""

import sys

from divisible.lazy_names import lazy_names

if "chainer_compat" in sys.modules:
    # Schedules alone need no check, because no user's file hides a part of them.
    from chainer_compat._packages import check

    check(__name__)

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "divisible._version": ["__version__"],
        "divisible.backward.split_functions": ["register_split"],
        "divisible.carried_state": ["carry_state"],
        "divisible.chains.conversion": ["from_chain"],
        "divisible.deferred.recipe": ["NotMadeError"],
        "divisible.deferred.scope": ["deferred_init"],
        "divisible.model": ["Divisible"],
        "divisible.planning.machine": ["Machine"],
        "divisible.planning.disk": ["Disk"],
        "divisible.planning.network": ["Network"],
        "divisible.planning.layer_memory": ["LayerMemory", "ModelMemory"],
        "divisible.planning.measuring": ["profile"],
        "divisible.planning.memory_tracing": ["trace_memory"],
        "divisible.planning.cuts": ["MemoryLimitError"],
        "divisible.planning.partition": ["partition"],
        "divisible.planning.plan": ["Plan"],
        "divisible.planning.layer_cost": ["LayerCost"],
        "divisible.planning.profile": ["Profile"],
        "divisible.planning.search": ["best_plan"],
        "divisible.random_streams": ["RandomKey", "keyed_random_state"],
        "divisible.schedules.simulator": ["simulate"],
        "divisible.skips": ["pop", "stash"],
    },
)
