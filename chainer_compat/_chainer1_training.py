"""Updaters, evaluators and snapshots of Chainer 1.

::

    def __call__(self, x, t):                 # of a script's model
        x.data = x.data.reshape(-1, 1, 28, 28)    # x was a variable, and is an array

    trainer.extend(extensions.snapshot(trigger=(1, "epoch")))
                                              trainer.extend(snapshot(), trigger=...)

    trainer.extend(extension, invoke_before_training=True)
                                              ..., call_before_training=True)

Loss functions that a script calls itself get what the script passes.
"""

import functools

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
        return _variables(self._convert._call_converter(*args))


def _variables(found):
    """Returns variables of a minibatch's arrays."""
    tell(
        "variables",
        "a model gets variables of a minibatch's arrays: as_variable(x) in the script",
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


def change_parallel(module) -> None:
    """Makes variables of what the converter of a ``ParallelUpdater`` returns."""
    cls = module.ParallelUpdater
    init = cls.__init__

    @functools.wraps(init)
    def call(self, *args, **kwargs):
        init(self, *args, **kwargs)
        convert = self.converter
        self.converter = lambda *args: _variables(convert(*args))

    cls.__init__ = call


def change_trainer(module) -> None:
    """Makes trainers call extensions before training, as their attribute says."""
    cls = module.Trainer
    extend = cls.extend

    @functools.wraps(extend)
    def call(self, extension, *args, **kwargs):
        attribute = getattr(extension, "invoke_before_training", False)
        if kwargs.pop("invoke_before_training", attribute):
            kwargs["call_before_training"] = True
            tell(
                "before training",
                "invoke_before_training is call_before_training of trainer.extend in"
                " the script",
            )
        return extend(self, extension, *args, **kwargs)

    cls.extend = call


def change_extensions(extensions) -> None:
    """Makes both kinds of snapshots accept ``trigger=``."""
    for name in "snapshot", "snapshot_object":
        setattr(extensions, name, _with_trigger(getattr(extensions, name), name))


def _with_trigger(make, name):
    @functools.wraps(make)
    def call(*args, trigger=None, **kwargs):
        extension = make(*args, **kwargs)
        if trigger is not None:
            extension.trigger = trigger
            tell(
                "trigger",
                f"{name} is called with trigger=: trainer.extend(extension,"
                " trigger=...) in the script",
            )
        return extension

    return call
