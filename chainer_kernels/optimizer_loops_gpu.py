"""The passes over flat buffers on a GPU, as CuPy kernels.

The public functions are those of ``optimizer_loops_cpu.py``. Here the gradients are
copied into one flat array first: a launch costs more than the copy. Products and sums
may be fused (FMA), so that the last bit may differ from a CPU's.

``tests/mixed_precision/test_gpu.py`` compares them to ``optimizer_loops_cpu.py`` where
there is a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from chainer.backends.cuda import cupy

from chainer_kernels.formulas import Formula, as_cuda, number_names, state_names
from chainer_kernels.update_rules import ALIGNMENT

Array = Any


class Gradients(NamedTuple):
    """Gradients of parameters in one flat array, aligned as the other buffers.

    Attributes:
        flat: CuPy array.
        starts: Where each parameter begins, NumPy int64.
        ends: Where each ends.
    """

    flat: Array
    starts: np.ndarray
    ends: np.ndarray


def gathered(arrays: Sequence[Array], starts: Array, ends: Array) -> Gradients:
    """Returns the gradients of a group of parameters, copied together."""
    zeros = cupy.zeros(ALIGNMENT, arrays[0].dtype)
    parts = []
    for array, end in zip(arrays, ends):
        parts += [array.ravel(), zeros[: -end % ALIGNMENT]]
    return Gradients(cupy.concatenate(parts), starts, ends)


def in_buffer(flat: Array, starts: Array, ends: Array) -> Gradients:
    """Returns the gradients that are in a flat buffer."""
    return Gradients(flat, starts, ends)


# A warp reads a chunk, each lane every 32nd number, in the same order at all times.
_LANES = 32
_CHUNK = 64 * _LANES


# CuPy infers a type from arrays only. Where only numbers have the type W, an array of W
# without elements is among the inputs.
_OF_TYPE_W = "raw W of_type_w"


@functools.cache
def _kernel(inputs: str, outputs: str, body: str, name: str) -> Any:
    return cupy.ElementwiseKernel(inputs, outputs, body, name)


def sum_squares(gradients: Gradients, inverse: np.floating, sums: np.ndarray) -> None:
    """Sums for each parameter the squares of its unscaled gradients, in float64."""
    starts, ends, first_chunks, occupied = _chunks(
        gradients.starts.tobytes(), gradients.ends.tobytes(), cupy.cuda.Device().id
    )
    sums[:] = 0
    if not len(first_chunks):
        return
    kernel = _kernel(
        f"raw G gradients, W inverse, raw int64 starts, raw int64 ends, {_OF_TYPE_W}",
        "float64 partial",
        """
        long long chunk = i / LANES;
        double total = 0;
        for (long long j = starts[chunk] + i % LANES; j < ends[chunk]; j += LANES) {
            double g = static_cast<W>(gradients[j]) * inverse;
            total += g * g;
        }
        partial = total;
        """.replace("LANES", str(_LANES)),
        "mixed_precision_sum_squares",
    )
    partial = cupy.empty((len(starts), _LANES), np.float64)
    of_type_w = cupy.empty(0, inverse.dtype)
    kernel(gradients.flat, inverse, starts, ends, of_type_w, partial)
    sums[occupied] = np.add.reduceat(partial.sum(axis=1).get(), first_chunks)


@functools.lru_cache(maxsize=16)
def _chunks(starts: bytes, ends: bytes, device: int) -> tuple:
    """Cuts parameters into chunks.

    Returns:
        Where each chunk starts and ends, on the device; the first chunk of each
        parameter that has any elements, and the positions of these parameters.
    """
    bounds = list(zip(np.frombuffer(starts, "q"), np.frombuffer(ends, "q")))
    chunk_starts = [np.arange(start, end, _CHUNK) for start, end in bounds]
    chunk_ends = [
        np.minimum(each + _CHUNK, end) for each, (_, end) in zip(chunk_starts, bounds)
    ]
    counts = np.array([len(each) for each in chunk_starts])
    occupied = np.flatnonzero(counts)
    first = (np.cumsum(counts) - counts)[occupied]
    return (
        cupy.array(np.concatenate(chunk_starts)),
        cupy.array(np.concatenate(chunk_ends)),
        first,
        occupied,
    )


def unscale(gradients: Gradients, inverse: float, out: Array) -> None:
    """Writes the unscaled gradients into a flat buffer."""
    _kernel(
        "G gradient, W inverse",
        "W out",
        "out = static_cast<W>(gradient) * inverse;",
        "mixed_precision_unscale",
    )(gradients.flat, inverse, out)


def update(
    formula: Formula,
    gradients: Gradients,
    span: tuple[int, int],
    inverse: np.floating,
    weights: Array,
    half: Array,
    states: Sequence[Array],
    numbers: Sequence[float],
) -> None:
    """Updates parameters of a group; see ``optimizer_loops_cpu.py``."""
    part = slice(int(gradients.starts[span[0]]), int(gradients.ends[span[1]]))
    has_weights, has_half = weights.size > 0, half.size > 0
    outputs, arrays, load, store = [], [], "", ""
    if has_weights:
        outputs.append("W weights")
        arrays.append(weights[part])
        load, store = "W weight = weights;", "weights = weight;"
    if has_half:
        outputs.append("float16 half_")
        arrays.append(half[part])
        if has_weights:
            # Somebody may have changed the weight since it was rounded.
            load += """
            if (static_cast<float>(float16(weight)) != static_cast<float>(half_)) {
                weight = static_cast<float>(half_);
            }"""
        else:
            load = "float weight = static_cast<float>(half_);"
        store += " half_ = float16(weight);"
    for state, flat in zip(state_names(formula), states):
        outputs.append(f"{'float16' if flat.dtype == np.float16 else 'W'} {state}")
        arrays.append(flat[part])
    inputs = ["G scaled, W inverse", *(f"W {n}" for n in number_names(formula))]
    load += " W gradient = static_cast<W>(scaled) * inverse;"
    kernel = _kernel(
        ", ".join([*inputs, _OF_TYPE_W]),
        ", ".join(outputs),
        f"{load} {as_cuda(formula)} {store}",
        f"mixed_precision_{formula.__name__}",
    )
    of_type_w = cupy.empty(0, inverse.dtype)
    kernel(gradients.flat[part], inverse, *numbers, of_type_w, *arrays)


def refresh(master: Array, half: Array) -> None:
    """Takes weights that somebody changed over into the masters."""
    changed = master.astype(np.float16) != half
    cupy.copyto(master, half.astype(np.float32), where=changed)


def convert(values: Array, out: Array) -> None:
    """Converts float16 to float32, or rounds float32 to float16."""
    out[...] = values


# The steps are those of float8_bits.py; float16_bits.py explains them.
_ENCODE = """
    float value = static_cast<float>(x);
    // The scale is positive. A NaN loses its sign in products and conversions here.
    unsigned int sign = signbit(x) ? 0x80u : 0u;
    unsigned int original = __float_as_uint(value) & 0x7fffffffu;
    unsigned int magnitude = __float_as_uint(value * scale) & 0x7fffffffu;
    unsigned int odd = (magnitude >> 21) & 1u;
    unsigned int rounded = (magnitude - (0x38000000u - 0xfffffu) + odd) >> 21;
    if (magnitude < 0x38800000u) {
        rounded = __float_as_uint(__uint_as_float(magnitude) + 128.0f) - 0x43000000u;
    }
    if (rounded > 0x7bu) rounded = 0x7bu;
    if (original >= 0x7f800000u) rounded = 0x7cu;
    if (original > 0x7f800000u) rounded = 0x7eu;
    code = rounded | sign;
"""


def encode_e5m2(values: Array, scale: float, codes: Array) -> None:
    """Rounds scaled float32 or float16 values to e5m2."""
    kernel = _kernel("T x, float32 scale", "uint8 code", _ENCODE, "encode_e5m2")
    kernel(values, scale, codes)


def decode_e5m2(codes: Array, scale: float, values: Array) -> None:
    """Converts e5m2 to float32, scales, and rounds to float16 if values are that."""
    upper_bytes = codes.astype(np.uint16) << 8
    values[...] = upper_bytes.view(np.float16).astype(np.float32) * scale
