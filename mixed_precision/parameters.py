"""What an optimizer asks of parameters."""

from __future__ import annotations

import chainer
import numpy as np


def check_parameter(path: str, param: chainer.Parameter) -> None:
    """Refuses parameters that cannot be trained here."""
    if param.dtype.kind != "f":
        raise TypeError(
            f"parameter {path} is of dtype {param.dtype}; only floating-point"
            f" parameters can be trained. What is not trained can be a persistent"
            f" value of its link"
        )
    if param.device.xp not in (np, chainer.backends.cuda.cupy):
        raise TypeError(
            f"parameter {path} is on the device {param.device}; MixedPrecision works"
            f" on NumPy and CuPy arrays"
        )


def unique_parameters(
    target: chainer.Link, include_uninit: bool = False
) -> list[tuple[str, chainer.Parameter]]:
    """Returns parameters with their paths; one that two links share has its first.

    Two stages on a rank may have a copy each of a shared parameter: two parameters of
    the same path.
    """
    by_id: dict[int, tuple[str, chainer.Parameter]] = {}
    for path, param in target.namedparams(include_uninit):
        by_id.setdefault(id(param), (path, param))
    return list(by_id.values())


def keeps_master(param: chainer.Parameter) -> bool:
    """Whether the parameter, if it is float16, is updated in float32."""
    return getattr(param.update_rule, "keeps_master", True)


def has_master(param: chainer.Parameter) -> bool:
    """Whether the parameter is float16 and updated in float32."""
    try:
        is_half = param.dtype == np.float16
    except RuntimeError:
        # Neither initialized nor told its dtype.
        return False
    return is_half and keeps_master(param)
