"""PyTorch's modules as layers, and its optimizers.

::

    layer            TorchLayer: a module as a link
    function         one call of a module, in Chainer's graph
    shared_memory    parameters and buffers that a link and a module have in common
    blanks           parameters that are made when they are needed
    halves           PyTorch's backward in two halves
    norms            batch normalization that reports its statistics
    random_numbers   random numbers by step, microbatch and layer
    saved_tensors    what a graph keeps for its backward
    modes            training and evaluation
    structures       tuples, lists and dictionaries of inputs and outputs
    arrays           arrays as tensors, and back
    chain            from_torch: the layers of a module
    names            their names in the module
    optimizer        TorchOptimizer: an optimizer of PyTorch with Chainer's face
    update_rule      the same for one parameter
    loss             TorchLoss: a loss with its share in that of a minibatch

This package imports PyTorch, the extra ``torch``. No other package imports it.
"""

from torch_layers.chain import TorchChain, from_torch
from torch_layers.layer import TorchLayer
from torch_layers.loss import TorchLoss
from torch_layers.optimizer import TorchOptimizer

__all__ = ["TorchChain", "TorchLayer", "TorchLoss", "TorchOptimizer", "from_torch"]
