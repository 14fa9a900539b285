"""Chains of Chainer, taken apart into lists of layers.

::

    conversion         from_chain: a Divisible with the same results as a chain
    calls              the calls of a chain's forward, and the values between them
    sizes              minibatches of other sizes, which a chain may accept
    arguments          the arguments of functions in all these minibatches
    function_layers    functions between two links, as layers
    line               calls in a line: later inputs are stashed and popped
    names              the chain's own names of its parameters
    preserved_state    a chain that is the same after it ran as before
    comparison         outputs and gradients of a chain, and of its layers
"""
