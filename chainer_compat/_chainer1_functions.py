"""Functions of a script whose class has one of Chainer's as its base.

::

    class Unpooling(pooling_2d.Pooling2D):      a FunctionNode since Chainer 3
        def forward_cpu(self, x): ...
        def backward_cpu(self, x, gy): ...      of arrays, as chainer.Function has it

    Unpooling(2)(x)
"""

import chainer

from chainer_compat._warned import tell


class _OfNode(chainer.Function):
    """A function with the forward and the backward of another object.

    Args:
        node (chainer.FunctionNode): The object; its backward gets arrays.
    """

    def __init__(self, node) -> None:
        self._of = node

    @property
    def label(self):
        """The name in graphs."""
        return self._of.label

    def check_type_forward(self, in_types) -> None:
        """Checks the types of inputs."""
        self._of.check_type_forward(in_types)

    def forward(self, inputs):
        """Returns the outputs, as arrays."""
        return self._of.forward(inputs)

    def backward(self, inputs, grad_outputs):
        """Returns the gradients of the inputs, as arrays."""
        arrays = [array for array in (*inputs, *grad_outputs) if array is not None]
        is_on_gpu = any(
            isinstance(each, chainer.backends.cuda.ndarray) for each in arrays
        )
        name = "backward_gpu" if is_on_gpu else "backward_cpu"
        return getattr(self._of, name)(inputs, grad_outputs)


def call(node, inputs):
    """Applies a function to variables or arrays.

    Args:
        node (chainer.FunctionNode): The function.
        inputs (tuple): Variables or arrays.

    Returns:
        Variable or tuple: One output, or all.
    """
    name = type(node).__name__
    if hasattr(node, "backward_cpu"):
        tell(
            "functions",
            f"{name} has the backward of a chainer.Function and the base of another"
            " class. It runs as a chainer.Function",
        )
        return _OfNode(node)(*inputs)
    tell("nodes", f"{name}(...)(x) is {name}(...).apply((x,))[0] in the script")
    outputs = node.apply(inputs)
    return outputs if len(outputs) > 1 else outputs[0]
