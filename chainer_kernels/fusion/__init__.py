"""Chains of pointwise functions as one function each.

Many small operations cost more in calls and in memory traffic than in arithmetic; see
Wu, on optimizing deep learning at the level of the system.

::

    trust        which callables do the same in every call
    asides       layers that take something besides what the one before them returned
    tracing      runs them once in Chainer, forward and backward
      -> program      what they computed, as numbered values
      -> operations   the functions that are known, as expressions
    source       writes a program as two loops
      -> generated    compiles them, and keeps files and code
    function     the loops as a function of Chainer's
    products     linear layers and convolutions that begin a chain
      -> epilogue     what follows them, in their array
    heads        batch normalizations that do, and headed, normalized: what follows
    chains       that, by what a chain begins with, and its trial
    measuring    what that gains
    fusing       finds chains in a list of layers, and runs them
    report       the whole for a list, and a table of it

    hooks          whether a hook looks at single functions, which run one by one then
    folding        a batch normalization and the layer before it, where nothing trains
    inner_pairs    finds two such within a layer
    folded_layers  finds them in a list of layers, and runs them
"""
