"""Updaters and evaluators of Chainer 1, which made variables of a minibatch's arrays.

::

    def __call__(self, x, t):                 # of a script's model
        x.data = x.data.reshape(-1, 1, 28, 28)    # x was a variable, and is an array

Loss functions that a script calls itself get what the script passes.
"""

from chainer_compat._warned import tell


class Converting:
    """Chainer's module ``convert``, whose results are variables.

    Args:
        convert: The module.
    """

    def __init__(self, convert) -> None:
        self._convert = convert

    def __getattr__(self, name):
        return getattr(self._convert, name)

    def _call_converter(self, *args):
        found = self._convert._call_converter(*args)
        tell(
            "variables",
            "a model gets variables of a minibatch's arrays: as_variable(x) in the"
            " script",
        )
        if isinstance(found, tuple):
            return tuple(map(_variable, found))
        if isinstance(found, dict):
            return {name: _variable(each) for name, each in found.items()}
        return _variable(found)


def _variable(value):
    import chainer

    arrays = chainer.get_array_types()
    return chainer.Variable(value) if isinstance(value, arrays) else value


def change(module) -> None:
    """Makes variables of what a module's converter returns."""
    module.convert = Converting(module.convert)
