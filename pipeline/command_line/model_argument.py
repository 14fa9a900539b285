"""Models and optimizers named on a command line.

A model is ``MODULE:MODEL`` or ``FILE.py:MODEL``, an optimizer a class of Chainer's.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import chainer

from divisible import Divisible

# Defines the class of all modules of PyTorch, which need not be installed.
_OF_TORCH = "torch.nn.modules.module"


def make_model(text: str) -> Divisible:
    """Returns the model that a text names.

    Args:
        text: ``MODULE:MODEL``, such as ``models.vgg16:VGG16``; the module may be a
            file, ``models/vgg16.py:VGG16``. MODEL is a subclass of
            :class:`divisible.Divisible`, a function that returns a model, or a model.
            The first two may have arguments, which are numbers or texts:
            ``mlp.py:MLP(1000, n_layers=8)``.

    Returns:
        Divisible: The model.

    Raises:
        ValueError: If the module or the name does not exist, or the module is a script
            that ends when it is imported. If the arguments are not literals. If the
            result is not a model.

    Example:
        >>> model = make_model("divisible:Divisible")
        >>> len(model)
        0
    """
    place, colon, call = text.partition(":")
    if not (place and colon and call):
        raise ValueError(
            f"{text!r} names no model: write MODULE:MODEL, such as models.vgg16:VGG16,"
            f" or FILE.py:MODEL, with arguments as in mlp.py:MLP(1000, n_layers=8)"
        )
    name, args, kwargs = _parse(call)
    try:
        module = _import(place)
    except SystemExit as error:
        raise ValueError(
            f"{place} is imported, and ended with the exit code {error.code}: move what"
            f' a script does below if __name__ == "__main__":'
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"there is no {name!r} in {place}")
    made = getattr(module, name)
    _refuse_other_kinds(made, f"{name} in {place} is")
    # A model can be called with an input, so being callable does not suffice.
    if not isinstance(made, Divisible):
        if not callable(made):
            raise ValueError(
                f"{name} in {place} is a {type(made).__name__}: neither a model nor"
                f" something that makes one"
            )
        made = made(*args, **kwargs)
    elif args or kwargs:
        raise ValueError(f"{name} in {place} is a model already and takes no arguments")
    if not isinstance(made, Divisible):
        _refuse_other_kinds(made, f"{call} in {place} makes")
        raise ValueError(
            f"{call} in {place} makes a {type(made).__name__}, not a Divisible"
        )
    return made


def _refuse_other_kinds(made: Any, what: str) -> None:
    """Refuses networks that are no lists of layers, with the way to make them one.

    Args:
        made: A value.
        what: Beginning of the error.

    Raises:
        ValueError: If it is a module of PyTorch, or a link that is no ``Divisible``.
    """
    if any(kind.__module__ == _OF_TORCH for kind in type(made).__mro__):
        remedy = "from_torch(module), of torch_layers"
    elif isinstance(made, chainer.Link) and not isinstance(made, Divisible):
        remedy = "Divisible(*layers), or from_chain(chain, x), of divisible"
    else:
        return
    raise ValueError(
        f"{what} a {type(made).__name__}, not a Divisible: name a function that"
        f" returns {remedy}"
    )


def make_optimizer(name: str) -> chainer.GradientMethod:
    """Returns an optimizer with its usual arguments.

    Args:
        name: A class in :mod:`chainer.optimizers`, such as ``'Adam'``.

    Raises:
        ValueError: If there is no such class.
    """
    known = getattr(chainer.optimizers, name, None)
    if not (isinstance(known, type) and issubclass(known, chainer.GradientMethod)):
        raise ValueError(f"there is no optimizer {name!r} in Chainer")
    return known()


@contextlib.contextmanager
def blaming(whom: str, hint: str = "") -> Iterator[None]:
    """Raises errors again with the name of what the user gave, without a traceback.

    Args:
        whom: Name of the model or option.
        hint: Advice for errors outside of the layers.
    """
    try:
        yield
    except Exception as error:
        position = getattr(error, "layer_position", None)
        if isinstance(error, ValueError) and position is None and not hint:
            # Our own error about a name or a number needs no addition.
            raise
        where = ""
        if position is not None:
            where, hint = f", layer {position}", ""
        raise ValueError(
            f"{whom}{where}: {type(error).__name__}: {str(error).strip()}{hint}"
        ) from error


def _parse(call: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Returns the name and arguments of ``NAME(1, b=2)``, without running it."""
    try:
        tree = ast.parse(call, mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
            raise ValueError("it is neither a name nor a call")
        args = [ast.literal_eval(value) for value in tree.args]
        kwargs = {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"{call!r} is not NAME or NAME(1, 'text', option=2): {error}"
        ) from error
    return tree.func.id, args, kwargs


def _import(place: str) -> ModuleType:
    if place.endswith(".py"):
        if not os.path.exists(place):
            raise ValueError(f"there is no file {place}")
        folder, file = os.path.split(os.path.abspath(place))
        name = os.path.splitext(file)[0]
        while name in sys.modules:
            # The name may belong to one of our packages, which must stay available.
            name += "_"
        spec = importlib.util.spec_from_file_location(name, place)
        module = importlib.util.module_from_spec(spec)
        # The file may import modules that lie beside it, as when it is run.
        sys.path.insert(0, folder)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # The module itself is missing, not one that it imports.
        if error.name is not None and (place + ".").startswith(error.name + "."):
            raise ValueError(
                f"there is no module {place!r} here or among the installed ones"
            ) from error
        raise
