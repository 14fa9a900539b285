"""What loops reduce by, where Python's own word for it would not run in vectors."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def greater(context: Any, a: Any, b: Any) -> Any:
    """Returns the greater of two float32, or what is no number, as ``np.maximum``.

    A comparison does not say what becomes of that, which forbids another order.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single = arguments[0].type
        function = builder.module.declare_intrinsic(
            "llvm.maximum", [single], ir.FunctionType(single, [single, single])
        )
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate
