"""A table of the pointwise functions of Chainer that can be fused, as expressions.

Chainer computes gradients by functions as well, such as ``TanhGrad``. So the table
serves both directions of a chain.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.functions.math.basic_math import MultiAdd


class Operation(NamedTuple):
    """A class of pointwise functions.

    Attributes:
        expressions: An expression in Numba's Python for each output: ``{0}`` is the
            first input, ``{value}`` an attribute. Chainer or its kernel computes the
            same operations in the same order, so that results round alike.
        attributes: Names of a function's attributes that are arguments of its class,
            in the order of the arguments.
        arrays: Names of the attributes that are arrays, not numbers.
        fixed: Constant arguments of the class, behind those from attributes.
        is_exact: Whether the expression equals Chainer's function, or its kernel, bit
            for bit.
    """

    expressions: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    fixed: tuple[Any, ...] = ()
    is_exact: bool = True

    @property
    def numbers(self) -> tuple[str, ...]:
        """The attributes that are numbers."""
        return tuple(name for name in self.attributes if name not in self.arrays)


def _row(
    expression: str,
    attributes: str = "",
    arrays: str = "",
    fixed: tuple[Any, ...] = (),
    is_exact: bool = True,
) -> Operation:
    expressions = tuple(expression.split(";"))
    return Operation(
        expressions, (*attributes.split(),), (*arrays.split(),), fixed, is_exact
    )


#: The table, by module and class within ``chainer.functions``. Powers have their
#: exponent in the key, and sums have their number of summands.
OPERATIONS: dict[str, Operation] = {
    "activation.clipped_relu:ClippedReLU": _row("clipped_relu({0}, {cap})", "cap"),
    "activation.clipped_relu:ClippedReLUGrad2": _row(
        "clipped_relu_grad({x}, {0}, {cap})", "x cap", "x"
    ),
    "activation.elu:ELU": _row("elu({0}, {alpha})", "alpha"),
    "activation.elu:ELUGrad": _row(
        "elu_grad({cond}, {0}, {alpha})", "alpha cond", "cond"
    ),
    "activation.leaky_relu:LeakyReLU": _row("leaky_relu({0}, {0}, {slope})", "slope"),
    "activation.leaky_relu:_LeakyReLUGrad": _row(
        "leaky_relu({cond}, {0}, {slope})", "cond slope", "cond"
    ),
    "activation.relu:ReLU": _row("relu({0})"),
    "activation.relu:ReLUGrad2": _row("relu_grad({b}, {0})", "b", "b"),
    "activation.sigmoid:Sigmoid": _row("sigmoid({0})"),
    "activation.sigmoid:SigmoidGrad": _row("sigmoid_grad({0}, {1})", fixed=((None,),)),
    "activation.tanh:Tanh": _row("tanh({0})"),
    "activation.tanh:TanhGrad": _row("tanh_grad({0}, {1})", fixed=(None,)),
    "math.basic_math:Absolute": _row("abs({0})"),
    "math.basic_math:AbsoluteGrad": _row("sign({x}) * {0}", "x", "x"),
    "math.basic_math:Add": _row("{0} + {1}"),
    "math.basic_math:AddConstant": _row("{0} + {value}", "value"),
    "math.basic_math:Div": _row("{0} / {1}"),
    "math.basic_math:DivFromConstant": _row("{value} / {0}", "value"),
    "math.basic_math:DivFromConstantGrad": _row(
        "-{value} * {1} / ({0} * {0})", "value"
    ),
    "math.basic_math:DivGrad": _row(
        "{2} / {1};-({2} / {1}) * {0} / {1}", fixed=(True,)
    ),
    "math.basic_math:Mul": _row("{0} * {1}"),
    "math.basic_math:MulConstant": _row("{value} * {0}", "value"),
    **{
        f"math.basic_math:MultiAdd({n})": _row(" + ".join(f"{{{i}}}" for i in range(n)))
        for n in range(2, 9)
    },
    "math.basic_math:Neg": _row("-{0}"),
    "math.basic_math:PowVarConst(2)": _row("{0} * {0}", "value"),
    "math.basic_math:PowVarConstGrad(2)": _row("{value} * {0} * {1}", "value"),
    # NumPy computes powers with the C library, which rounds differently.
    "math.basic_math:PowVarConst(3)": _row("{0} * {0} * {0}", "value", is_exact=False),
    "math.basic_math:PowVarConstGrad(3)": _row("{value} * ({0} * {0}) * {1}", "value"),
    "math.basic_math:Sub": _row("{0} - {1}"),
    "math.basic_math:SubFromConstant": _row("{value} - {0}", "value"),
    "math.exponential:Exp": _row("exp({0})", is_exact=False),
    "math.identity:Identity": _row("{0}"),
    "math.sqrt:Sqrt": _row("sqrt({0})"),
    "math.square:Square": _row("{0} * {0}"),
    "noise.dropout:Dropout": _row("{0} * {mask}", "dropout_ratio mask", "mask"),
    "noise.dropout:DropoutGrad": _row("{0} * {mask}", "mask", "mask"),
}

#: Modules within ``loops`` of the functions that expressions call, by name; ``sqrt``
#: and ``abs`` come from elsewhere.
SCALARS: Mapping[str, str] = {
    **dict.fromkeys(("exp", "sigmoid", "tanh"), "exponential"),
    **dict.fromkeys(
        (
            *("clipped_relu", "clipped_relu_grad", "elu", "elu_grad", "leaky_relu"),
            *("relu", "relu_grad", "sigmoid_grad", "sign", "tanh_grad"),
        ),
        "pointwise",
    ),
}


def name_of(function: chainer.FunctionNode) -> str | None:
    """Returns the key of a function in :data:`OPERATIONS`, or ``None``.

    Example:
        >>> from chainer.functions.math.basic_math import PowVarConst
        >>> name_of(PowVarConst(2))
        'math.basic_math:PowVarConst(2)'
        >>> name_of(PowVarConst(0.3)), name_of(PowVarConst(2.0000001))
        (None, None)
    """
    package, _, module = type(function).__module__.partition(".functions.")
    if package != "chainer":
        return None
    name = f"{module}:{type(function).__qualname__}"
    if isinstance(function, MultiAdd):
        name = f"{name}({len(function.inputs or ())})"
    elif name not in OPERATIONS and np.isscalar(getattr(function, "value", None)):
        name = f"{name}({function.value:.17g})"
    return name if name in OPERATIONS else None


def leading(name: str, operands: Sequence[int], arrays: Sequence[int]) -> Sequence[int]:
    """Returns the arrays whose memory order a function's output has.

    The output of a kernel has the memory order of the kernel's first array, which is an
    attribute if there is one. The output of NumPy has the memory order of all arrays if
    they agree, and C order otherwise.

    Args:
        name: Key of the function in :data:`OPERATIONS`.
        operands: Numbers of the function's inputs.
        arrays: Numbers of the attributes that are arrays.
    """
    if name.startswith(("activation.", "noise.")):
        return [*arrays, *operands][:1]
    return [*operands, *arrays]


def numbers_of(function: chainer.FunctionNode, name: str) -> tuple[float, ...] | None:
    """Returns numeric attributes rounded to float32; ``None`` if one is not finite."""
    numbers = [getattr(function, each) for each in OPERATIONS[name].numbers]
    if not all(np.isscalar(number) and math.isfinite(number) for number in numbers):
        return None
    return tuple(float(np.float32(number)) for number in numbers)


def made(
    name: str, numbers: Sequence[float], arrays: Sequence[Any]
) -> chainer.FunctionNode:
    """Returns a new function of Chainer's.

    Args:
        name: Key of the function in :data:`OPERATIONS`.
        numbers: Attributes that are numbers, in the order of ``Operation.numbers``.
        arrays: Attributes that are arrays, in the order of ``Operation.arrays``.
    """
    operation = OPERATIONS[name]
    given = {**dict(zip(operation.numbers, numbers))}
    given.update(zip(operation.arrays, arrays))
    arguments = [given[each] for each in operation.attributes]
    return _class_of(name)(*arguments, *operation.fixed)


@functools.cache
def _class_of(name: str) -> type:
    module, _, rest = name.partition(":")
    return getattr(
        importlib.import_module(f"chainer.functions.{module}"), rest.partition("(")[0]
    )
