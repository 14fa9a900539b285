"""The backward of a graph, whole or in halves, without MPI.

::

    tensors           to and from Chainer's variables
    backprop          backward as a whole (B), or in two halves (I, then W)
    graph_walk        the walk through the graph that does it
    in_place          functions whose weight gradients need not be formed first
    contributions     what they return instead: products and sums
    weight_gradients  all of it added up over the microbatches
"""
