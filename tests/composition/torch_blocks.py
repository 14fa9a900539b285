"""Modules of PyTorch in the place of some blocks, where PyTorch is installed.

A case is drawn first, the same everywhere. Then some of its blocks are replaced by
modules that could stand there, with weights of their own::

    linear, tanh, residual   ->   torch linear, tanh, torch residual
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.composition.cases import Case
from tests.composition.choosing import Choices

try:
    from tests.composition import torch_modules
except ImportError:
    torch_modules = None

#: The module with what their code names, if PyTorch is there.
MODULES = () if torch_modules is None else (torch_modules,)
_PREFIX = "torch "
#: By the block for which a module stands, its code, and the path of a matrix to tie.
CODES = {
    "linear": ("seeded(nn.Linear, 6, 6)", "weight"),
    "each word": ("seeded(nn.Linear, 6, 6)", "weight"),
    "convolution": ("seeded(nn.Conv2d, 6, 6, 3, padding=1)", ""),
    "depthwise": ("seeded(nn.Conv2d, 6, 6, 3, padding=1, groups=6)", ""),
    "deconvolution": ("seeded(nn.ConvTranspose2d, 6, 6, 3, padding=1)", ""),
    "tanh": ("seeded(nn.Tanh)", ""),
    "softplus": ("seeded(nn.GELU)", ""),
    "relu": ("seeded(nn.ReLU)", ""),
    "pool": ("seeded(nn.MaxPool2d, 3, stride=1, padding=1)", ""),
    "dropout": ("seeded(nn.Dropout)", ""),
    "layer normalization": ("seeded(nn.LayerNorm, 6)", ""),
    "group normalization": ("seeded(nn.GroupNorm, 2, 6)", ""),
    "residual": ("seeded(ResidualModule, nn.Linear, 6, 6)", "first.weight"),
    "residual of images": (
        "seeded(ResidualModule, nn.Conv2d, 6, 6, 3, padding=1)",
        "",
    ),
    "n-step": ("seeded(AllOutputs, 6, 6, batch_first=True)", ""),
}
# The serial script of the tests knows Chainer's normalizations alone, which stay in
# float32. PyTorch has no LSTM of float16 on CPUs.
_NOT_IN_FLOAT16 = ("layer normalization", "group normalization", "n-step")
_IMPORTS = """import torch
from torch import nn

from torch_layers import TorchLayer"""


def register(blocks: dict[str, Any], names: dict[str, Any]) -> None:
    """Adds modules to the blocks, and what their code names, if PyTorch is there.

    Args:
        blocks: The blocks by name.
        names: Names in the code of blocks.
    """
    for module in MODULES:
        names.update(vars(module))
        for name, (code, weight) in CODES.items():
            # None is drawn by itself.
            blocks[_PREFIX + name] = blocks[name]._replace(
                code=code, weight=weight, domains=""
            )


def replaced(choose: Choices, case: Case) -> Case:
    """Returns a case with modules in the place of some of its blocks.

    Without PyTorch it is the case itself.
    """
    # Compression chooses among Chainer's links.
    if not MODULES or case.update.compression or not choose.chance(30):
        return case
    left = {*_NOT_IN_FLOAT16} if case.model.dtype == "float16" else set()
    # A module cannot use a transpose as its own weight.
    turned = {later for _, later, is_turned in case.model.ties if is_turned}
    blocks = tuple(
        _PREFIX + name
        if name in CODES and not (name in left or i in turned) and choose.chance(50)
        else name
        for i, name in enumerate(case.model.blocks)
    )
    return dataclasses.replace(
        case, model=dataclasses.replace(case.model, blocks=blocks)
    )


def head(codes: list[str]) -> list[str]:
    """Returns the imports of a script with modules; none for other code."""
    return [_IMPORTS] * any("seeded(" in code for code in codes)
