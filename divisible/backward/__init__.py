"""The backward of a graph, whole or in halves, without MPI.

::

    tensors           to and from Chainer's variables
    backprop          backward as a whole (B), or in two halves (I, then W)
    graph_walk        the walk through the graph that does it
    weight_gradients  gradients added up over the microbatches
    in_place          without forming them first
"""
