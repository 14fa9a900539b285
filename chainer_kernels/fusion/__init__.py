"""Chains of pointwise functions as one function each.

Many small operations cost more in calls and in memory traffic than in arithmetic; see
Wu, on optimizing deep learning at the level of the system.

::

    trust        which callables compute the same in every call
    side_inputs       layers with inputs besides the output of the previous layer
    tracing      runs layers once in Chainer, forward and backward
      -> program      the functions that ran, as numbered values
      -> operations   the supported functions, as expressions
    source       writes a program as two loops
      -> generated    compiles the loops, and stores files and code
    function     the loops as a function of Chainer's
    products     linear layers and convolutions that begin a chain
      -> epilogue          the functions behind a product, in the product's array
      -> epilogue_source   the source of their loop
    heads        batch normalizations that begin a chain
      -> head_source, headed   the loops of a batch normalization, written and compiled
      -> normalized            them as one function of Chainer's
      -> channel_view          activations as matrices, in which channels are apart
    chains       the kinds of chains, by their first layer, and their trials
    perceptrons  several small linear layers, with functions behind each
      -> perceptron_function  all of them as a function of Chainer's
    measuring    times a chain, fused and unfused
    fusing       finds chains in a list of layers, and runs them
    report       fuses a list of layers, and prints a table of its chains

    folding        a batch normalization folded into the layer before it, in inference
    inner_pairs    finds links to fold within a layer
    folded_layers  finds links to fold in a list of layers, and runs them
"""
