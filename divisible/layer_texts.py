"""Layers as texts, which ranks compare and people read.

::

    layer                         text                  title
    F.relu                        relu                  relu
    Sequential(F.relu)            Sequential(           Sequential
                                    (0): ...
                                  )
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any


def describe(layer: Any) -> str:
    """Returns text for a layer, equal in every process: without memory addresses."""
    try:
        text = getattr(layer, "__qualname__", None) or str(layer)
    except AttributeError:
        # Chainer's BatchNormalization(axis=...) has no text before it has a size.
        text = type(layer).__qualname__
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def title(text: str) -> str:
    r"""Returns the text of a layer in one line, without its inner links.

    Args:
        text (str): Result of :func:`describe`. A chain has a line for each link.

    Example:
        >>> title("Block(\n  (conv): Convolution2D(...),\n)")
        'Block'
        >>> title("functools.partial(<function relu>, 2)")
        'partial(relu, 2)'
    """
    line = text.partition("\n")[0].removesuffix("(")
    return re.sub(r"^functools\.partial\(<function (\w+)>", r"partial(\1", line)


def place_of(layer: Any) -> str:
    """Returns the file and the line of a lambda; an empty text for other layers.

    Example:
        >>> place_of(abs)
        ''
    """
    code = getattr(layer, "__code__", None)
    if code is None or getattr(layer, "__name__", "") != "<lambda>":
        return ""
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def differing_titles(text: str, other: str) -> tuple[str, str]:
    r"""Returns the texts of two different layers, each in one line.

    Example:
        >>> differing_titles("A(\n  (f): Linear(2),\n)", "A(\n  (f): Linear(3),\n)")
        ('A with (f): Linear(2)', 'A with (f): Linear(3)')
    """
    titles = title(text), title(other)
    if titles[0] != titles[1]:
        return titles
    for mine, theirs in itertools.zip_longest(*map(_lines, (text, other))):
        if mine != theirs:
            return (
                f"{titles[0]} with {mine or 'nothing more'}",
                f"{titles[1]} with {theirs or 'nothing more'}",
            )
    return titles


def _lines(text: str) -> list[str]:
    """Returns the lines with content."""
    lines = (line.strip().rstrip(",") for line in text.splitlines())
    return [line for line in lines if line != ")"]
