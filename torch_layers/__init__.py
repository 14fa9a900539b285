"""PyTorch's modules as layers, and its optimizers.

::

    layer            TorchLayer: a module as a link
    chained          neighbouring modules as one function in Chainer's graph
    function         one call of a module, in Chainer's graph
    call             the same, with a graph of PyTorch
    shape_call       the same on tensors without numbers
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

These modules import PyTorch, the extra ``torch``, and no other package imports them.
Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "torch_layers.chain": ["TorchChain", "from_torch"],
        "torch_layers.layer": ["TorchLayer"],
        "torch_layers.loss": ["TorchLoss"],
        "torch_layers.optimizer": ["TorchOptimizer"],
    },
)
