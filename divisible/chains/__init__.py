"""Chains of Chainer, taken apart into lists of layers.

::

    conversion         from_chain: a Divisible that computes what a chain does
    calls              what a chain's forward calls, and what flows between the calls
    sizes              minibatches of other sizes, which a chain may accept
    arguments          what functions are called with, in all of them
    function_layers    functions between two links, as layers
    line               calls in a line: what is used later is stashed and popped
    names              the chain's own names of its parameters
    preserved_state    a chain that is as it was after it ran
    comparison         outputs and gradients of a chain, and of its layers
"""
