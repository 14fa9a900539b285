"""The numbers in which messages travel: one entry for each wire dtype.

Replicas exchange gradients in them (`data_parallel`), and stages send activations and
gradients in them (:mod:`divisible.communication.narrowing`).

A message of a scaled dtype begins with the largest magnitude of each block, in float32.
The codes of all elements follow. A byte holds two codes of 4 bits::

    |value of block 0|  |value of block 1|  ...   code 0  code 1  code 2  ...

The error of one rounding, for each element, is at most ``u |x| + a(block) + least``.
One part is relative to the number, one to the largest magnitude in its block of
elements, and one is that of subnormal numbers.

Numbers and messages are NumPy's arrays, or both are CuPy's; the bits are the same. Only
``fp32`` loses numbers below 2^-126 on a GPU, where CuPy's arithmetic turns them into
zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from divisible.records import shown

#: Default number of elements in a block, which share a scale.
BLOCK = 256
#: Number of elements that are coded and sent together, and number of such chunks that
#: are sent at once: enough to keep the wire busy while one chunk is coded.
CHUNK, WINDOW = 2**20, 4


class Fields(NamedTuple):
    """The scales and the codes of some elements of a message.

    Attributes:
        scales: The largest magnitude of each block, float32; empty without scales.
        codes: The code of each element.
    """

    scales: np.ndarray
    codes: np.ndarray


class WireDtype(NamedTuple):
    """A dtype in which numbers travel.

    Attributes:
        name: The name that users give.
        dtype: The dtype of the codes; with 4 bits, of two codes.
        is_scaled: Whether each block of elements has a scale.
        u: The error of a rounding, relative to the number.
        a: The error of a rounding, relative to the largest magnitude in the block.
        least: The absolute error of a rounding, for a dtype without scales.
        bits: Bits of a code.
        most_block: The most elements that share a scale; 0 for as many as a block has.
        greatest: The greatest magnitude in its range; greater ones become it.
    """

    name: str
    dtype: np.dtype
    is_scaled: bool
    u: float
    a: float
    least: float = 0.0
    bits: int = 0
    most_block: int = 0
    greatest: float = math.inf

    @property
    def has_kernels(self) -> bool:
        """Whether a GPU can encode and decode it."""
        return self.name == "fp32" or self.name in _kernels().FORMATS

    def n_bytes(self, n: int, block: int) -> int:
        """Returns the size of a message of ``n`` elements in blocks of ``block``."""
        return 4 * self._n_scales(n, block) + -(-n * self.bits // 8)

    def fields(self, message: np.ndarray, n: int, block: int) -> Fields:
        """Returns the scales and the codes of a message, as views.

        Args:
            message: Contiguous uint8 of :meth:`n_bytes` bytes, aligned to 4.
            n: Number of elements of the message.
            block: Number of elements in a block.
        """
        start = 4 * self._n_scales(n, block)
        scales, codes = message[:start], message[start:]
        return Fields(scales.view(np.float32), codes.view(self.dtype))

    def part(self, fields: Fields, place: slice, block: int) -> Fields:
        """Returns the fields of some elements, as views.

        Args:
            fields: The fields of all elements.
            place: Range of the elements, which begins with a block.
            block: Number of elements in a block.
        """
        each = 8 * self.dtype.itemsize // self.bits
        codes = fields.codes[place.start // each : -(-place.stop // each)]
        if not self.is_scaled:
            return fields._replace(codes=codes)
        block = self.block_of(block)
        first, last = place.start // block, -(-place.stop // block)
        return Fields(fields.scales[first:last], codes)

    def block_of(self, block: int) -> int:
        """Returns the number of elements that share a scale.

        Args:
            block: Number of elements in a block, a multiple of 16. Where fewer share a
                scale, a block has several scales.

        Example:
            >>> WIRE["int8"].block_of(256), WIRE["int4"].block_of(256)
            (256, 32)
        """
        return math.gcd(block, self.most_block)

    def encode(
        self, values: np.ndarray, block: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Encodes numbers as a message.

        Args:
            values: Contiguous float32 numbers, finite, in one dimension.
            block: Number of elements in a block.
            out: The array to write to: contiguous uint8 of :meth:`n_bytes` bytes,
                aligned to 4. By default a new array.

        Example:
            >>> message = WIRE['int8'].encode(np.array([1, -2, 4], 'f'), 16)
            >>> WIRE['int8'].decode(message, 3, 16)
            array([ 1.007874, -2.015748,  4.      ], dtype=float32)
        """
        if out is None:
            n_bytes = self.n_bytes(values.size, block)
            out = np.empty_like(values, np.uint8, shape=n_bytes)
        self.write(values, block, self.fields(out, values.size, block))
        return out

    def decode(
        self,
        message: np.ndarray,
        n: int,
        block: int,
        out: np.ndarray | None = None,
        add: bool = False,
    ) -> np.ndarray:
        """Returns the numbers of a message.

        Args:
            message: The message, as :meth:`encode` returned it.
            n: Number of elements of the message.
            block: Number of elements in a block.
            out: Contiguous float32 array to write to. By default a new array.
            add: Whether to add the numbers to ``out`` instead.
        """
        if out is None:
            out = np.empty_like(message, np.float32, shape=n)
        self.read(self.fields(message, n, block), block, out, add)
        return out

    def write(
        self, values: np.ndarray, block: int, to: Fields, share: float = 1.0
    ) -> Any:
        """Encodes numbers, times ``share``, into the fields of a message.

        Args:
            values: Contiguous float32 numbers in one dimension.
            block: Number of elements in a block.
            to: The scales and codes of these numbers.
            share: Factor, at least 0; the products are rounded to float32.

        Returns:
            Whether all products are finite. If not, zeros are written. On a GPU it is
            an array of one bool, which is valid when the kernels have run.
        """
        share, block = np.float32(share), self.block_of(block)
        if self.name == "fp32":
            np.multiply(values, share, out=to.codes)
            return True
        if not isinstance(values, np.ndarray):
            return _kernels().write(
                self.name, values, share, block, to.scales, to.codes
            )
        loops = _loops()
        # A dtype without scales has one block of all elements.
        largest = to.scales if self.is_scaled else np.zeros(1, np.float32)
        loops.largest_of_blocks(
            values, share, block if self.is_scaled else max(values.size, 1), largest
        )
        if not np.isfinite(largest.max(initial=0)):
            to.scales[:] = 0
            to.codes[:] = 0
            return False
        if self.is_scaled:
            encode = getattr(loops, f"encode_{self.name}")
            encode(values, share, to.scales, block, to.codes)
        else:
            getattr(loops, f"encode_{self.name}")(values, share, to.codes)
        return True

    def read(
        self, fields: Fields, block: int, out: np.ndarray, add: bool = False
    ) -> None:
        """Decodes numbers from the fields of a message.

        Args:
            fields: The scales and codes of the numbers.
            block: Number of elements in a block.
            out: Contiguous float32 array to write to.
            add: Whether to add the numbers to ``out`` instead.
        """
        block = self.block_of(block)
        if self.name == "fp32":
            np.add(out, fields.codes, out) if add else np.copyto(out, fields.codes)
        elif not isinstance(out, np.ndarray):
            codes, scales = fields.codes, fields.scales
            _kernels().read(self.name, codes, scales, block, out, add)
        elif self.is_scaled:
            decode = getattr(_loops(), f"decode_{self.name}")
            decode(fields.codes, fields.scales, block, out, add)
        else:
            getattr(_loops(), f"decode_{self.name}")(fields.codes, out, add)

    def bound(self, values: np.ndarray, block: int) -> np.ndarray:
        """Returns the largest error that one rounding of ``values`` can have, float64.

        Args:
            values: Numbers in one dimension.
            block: Number of elements in a block.
        """
        magnitudes, block = np.abs(values, dtype=np.float64), self.block_of(block)
        starts = range(0, max(values.size, 1), block)
        largest = [magnitudes[start : start + block].max(initial=0) for start in starts]
        of_blocks = np.repeat(largest, block)[: values.size]
        return self.u * magnitudes + self.a * of_blocks + self.least

    def _n_scales(self, n: int, block: int) -> int:
        return -(-n // self.block_of(block)) if self.is_scaled else 0


def _loops() -> Any:
    # Numba takes a second to load, and fp32 does not need it.
    from chainer_kernels.loops import wire

    return wire


def _kernels() -> Any:
    # The import of this package puts kernels into Chainer.
    from chainer_kernels import wire_gpu

    return wire_gpu


def _entry(
    name: str,
    dtype: str,
    is_scaled: bool,
    u: float,
    a: float,
    least: float = 0.0,
    bits: int | None = None,
    **others: Any,
) -> tuple[str, WireDtype]:
    codes = np.dtype(dtype)
    bits = 8 * codes.itemsize if bits is None else bits
    return name, WireDtype(name, codes, is_scaled, u, a, least, bits, **others)


#: All dtypes by name. The strategies decide which of them stands for ``'fp8'``.
WIRE: dict[str, WireDtype] = dict(
    (
        _entry("fp32", "f4", False, 0, 0),
        _entry("fp16", "u2", False, 2.0**-11, 0, 2.0**-25, greatest=65504.0),
        _entry("bf16", "u2", False, 2.0**-8, 0, 2.0**-134),
        _entry("e5m2", "u1", True, 2.0**-3, 2.0**-30),
        _entry("e4m3", "u1", True, 2.0**-4, 2.0**-17),
        _entry("int8", "u1", True, 0, 1 / 254),
        _entry("int4", "u1", True, 0, 1 / 14, bits=4, most_block=32),
    )
)


#: Dtypes of NumPy with the same numbers.
IN_NUMPY = {"fp32": np.dtype("f4"), "fp16": np.dtype("f2")}


def check_wire_dtype(
    argument: str, name: Any, names: Collection[str] = tuple(WIRE)
) -> None:
    """Refuses a value that does not name a dtype on the wire.

    Args:
        argument: The name of the argument, for the error.
        name: The value of the argument. A plan's comes from a file.
        names: The names that it may have.

    Raises:
        ValueError: If the value is not one of the names. The message lists them. For a
            dtype of NumPy it has the name of that dtype.

    Example:
        >>> check_wire_dtype("exchange_dtype", "int8")
        >>> check_wire_dtype("dtype", "float16", ["fp32", "fp16"])
        Traceback (most recent call last):
        ...
        ValueError: dtype must be one of fp32, fp16, not 'float16': give the name 'fp16'
    """
    # A value from a file need not be a key of a dictionary.
    if isinstance(name, str) and name in names:
        return
    try:
        same = [known for known in names if IN_NUMPY.get(known) == np.dtype(name)]
    except (TypeError, ValueError):
        same = []
    cure = f": give the name {same[0]!r}" if same else ""
    raise ValueError(
        f"{argument} must be one of {', '.join(names)}, not {shown(name)}{cure}"
    )
