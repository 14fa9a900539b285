"""Chains of Chainer, taken apart into lists of layers.

::

    conversion         from_chain: a Divisible with the same results as a chain
    examples           minibatches of several sizes, and the calls in them
    apart              links that are taken apart, so that their children become layers
    calls              the calls of a chain's forward, and the values between them
    recording          the run of a forward, in which its calls are noted
    own_calls          links that define __call__
    positional         arguments of links, by position
    read_arrays        arrays of variables, which a forward reads
    random_draws       random numbers of the forward itself, which are refused
    written_weights    weights that the forward writes itself, which are refused
    traced_arrays      arrays that record the operations on them
    made_arrays        arrays by np.array and np.zeros, which record as well
    array_operations   these operations, which are layers
    slots              arguments with places for arrays
    places             lines of the user's code, for messages
    resolving          the values between noted calls
    constants          arrays that are made of sizes alone
    anchors            inputs from which functions have their sizes
    sizes              minibatches of other sizes, which a chain may accept
    arguments          the arguments of functions in all these minibatches
    function_layers    functions between two links, as layers
    returned           outputs of a forward, one by one
    line               calls in a line: later inputs are stashed and popped
    names              the chain's own names of its parameters
    preserved_state    a chain that is the same after it ran as before
    modes              the line that goes another way in test mode
    comparison         outputs and gradients of a chain, and of its layers
"""
