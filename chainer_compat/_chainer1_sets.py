"""The ``FunctionSet`` of Chainer 1: a chain that is made of keyword arguments."""

import chainer

from chainer_compat._warned import tell


class FunctionSet(chainer.Chain):
    """A chain whose links are given by name, or set as attributes later.

    Args:
        links: The links by their names.
    """

    def __init__(self, **links) -> None:
        tell(
            "FunctionSet",
            "FunctionSet is a chainer.Chain, whose links are set within"
            " init_scope() in the script",
        )
        super().__init__()
        for name, link in links.items():
            setattr(self, name, link)

    def __setattr__(self, name, value) -> None:
        if isinstance(value, chainer.Link):
            with self.init_scope():
                super().__setattr__(name, value)
        else:
            super().__setattr__(name, value)

    def collect_parameters(self):
        """Returns the set itself, which ``optimizer.setup`` accepts."""
        return self

    @property
    def parameters(self) -> tuple:
        """The arrays of the parameters, in the order of their names."""
        return tuple(param.array for _, param in sorted(self.namedparams()))

    @property
    def gradients(self) -> tuple:
        """The arrays of the gradients, in the order of their names."""
        return tuple(param.grad for _, param in sorted(self.namedparams()))

    def copy_parameters_from(self, params) -> None:
        """Copies arrays into the parameters, in the order of their names."""
        mine = [param for _, param in sorted(self.namedparams())]
        for param, array in zip(mine, params):
            param.array[...] = param.device.send(array)
