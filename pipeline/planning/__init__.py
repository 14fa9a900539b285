"""From the layers of a model to the plan that runs fastest.

::

    profiling      what each layer costs; phases, meters and retained: how to measure it
    combinations   stages x microbatches x schedule x recomputation, each cut and costed
    prediction     what a plan takes, by simulation
    search         the fastest of them that fits
"""
