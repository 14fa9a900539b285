"""The backward of a graph, whole or in halves, without MPI.

::

    tensors           to and from Chainer's variables
    backprop          backward as a whole (B), or in two halves (I, then W)
    graph_walk        the walk through the graph that does it
    weight_gradients  those of weights, added up over the microbatches

Which functions can be split, and which tell what to add to the gradient of a weight
without forming it, is in :mod:`chainer_kernels.catalogue`.
"""
