"""The backward of a graph, whole or in halves, without MPI.

::

    tensors           conversion from and to Chainer's variables
    backprop          backward as a whole (B), or in two halves (I, then W)
    graph_walk        the traversal of the graph that computes gradients
    graph_functions   the functions of a graph, without running them
    joint_weights     gradients of weights, of several microbatches together
    weight_gradients  gradients of weights, summed over the microbatches
    late_gradients    gradients of weights that are used one minibatch late
    completion        the gradients that are complete during the last backward
    split_functions   functions of users whose backward runs in two halves

The catalogue :mod:`chainer_kernels.catalogue` has the functions that can be split, and
those that can add to the gradient of a weight without forming it.
"""
