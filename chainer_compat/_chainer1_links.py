"""Parameters of links that get their sizes in the first call, as Chainer 1 had them.

::

    self.add_uninitialized_param('W')           self.W = chainer.Parameter(initializer)
    if self.has_uninitialized_params:           if self.W.array is None:
        self.add_param('W', shape)                  self.W.initialize(shape)

The parameter is there from the beginning, so that ``optimizer.setup`` finds it.
"""

import functools

from chainer_compat._warned import tell


def change(module) -> None:
    """Gives both back to ``chainer.Link``.

    Args:
        module: The module ``chainer.link``.
    """
    link = module.Link
    link.add_uninitialized_param = _add_uninitialized_param
    link.has_uninitialized_params = property(_has_uninitialized_params)
    link.add_param = _initializing(link.add_param)


def _add_uninitialized_param(self, name) -> None:
    tell(
        "uninitialized",
        f"add_uninitialized_param({name!r}) is self.{name} = chainer.Parameter() within"
        " init_scope() in the script",
    )
    self.add_param(name)


def _has_uninitialized_params(self) -> bool:
    return any(not vars(self)[name].is_initialized for name in self._params)


def _initializing(add_param):
    @functools.wraps(add_param)
    def call(self, name, shape=None, dtype=None, initializer=None):
        param = vars(self).get(name)
        if shape is None or name not in self._params or param.is_initialized:
            return add_param(self, name, shape, dtype, initializer)
        if initializer is not None:
            from chainer import initializers

            param.initializer = initializers._get_initializer(initializer)
        param.initialize(shape)

    return call
