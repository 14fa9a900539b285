"""Shapes that follow from the number of samples, which bytes tell."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from divisible.communication.narrowing import n_bytes
from divisible.communication.receive_buffers import PIECE_BYTES
from divisible.communication.signatures import TensorSpec
from divisible.communication.static_shapes import NotStaticError, Room, StaticShapes

SIZES = (2, 3, 5)

#: For each axis its length without samples, and by how much it grows with each.
axes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3)
arrays = st.fixed_dictionaries(
    {
        "axes": st.none() | axes,
        "dtype": st.sampled_from(["<f2", "<f4", "|u1", "|b1"]),
        "requires_grad": st.sampled_from([True, False, None]),
        "wire": st.sampled_from(["", "int8", "int4", "fp16"]),
    }
)
messages = st.lists(arrays, min_size=1, max_size=3)


def at(message, n):
    """The signature that a message of n samples has."""
    return tuple(
        TensorSpec(
            None
            if array["axes"] is None
            else tuple(length + n * by for length, by in array["axes"]),
            array["dtype"],
            array["requires_grad"],
            (),
            array["wire"] if array["dtype"] in ("<f2", "<f4") else "",
        )
        for array in message
    )


def found(message):
    return StaticShapes({n: at(message, n) for n in SIZES})


def grows(message):
    return any(by for array in message for _, by in array["axes"] or ())


@given(messages, st.integers(1, 20))
def test_shapes_for_any_number_of_samples(message, n):
    shapes = found(message)
    assert shapes.at(n) == at(message, n)
    assert shapes.n_samples(at(message, n)) == (n if grows(message) else None)


#: A number for each sample: in 4 bits, one sample has the bytes of two.
NUMBERS = [{"axes": [(0, 1)], "dtype": "<f4", "requires_grad": True, "wire": "int4"}]


@example(NUMBERS, 2, 1)
@example(NUMBERS, 4, 3)
@example(NUMBERS, 4, 2)
@given(messages, st.integers(1, 20), st.integers(0, 25))
def test_bytes_tell_the_number_of_samples(message, most, n):
    """A message either fits and is told from all others, or is described."""
    shapes, agreed = found(message), at(message, most)
    room = Room(shapes, agreed, PIECE_BYTES)
    specs = at(message, n) if n else ()
    if room.holds(specs) is None:
        return
    if all(array["axes"] is None for array in message):
        assert n == 0
        return
    assert grows(message) and n <= most
    sizes = [n_bytes(spec) for spec in specs if spec.shape is not None]
    whole = [n_bytes(spec) for spec in agreed if spec.shape is not None]
    told = [size for size, most in zip(sizes, whole) if most] if n else [1]
    # A receiver tells them apart so: a byte for none, no byte for a new signature.
    assert told[0] and (told[0] == 1) == (n == 0)
    if n:
        assert room.n_samples(told[room.piece]) == n
        assert (told[room.piece] == room.n_bytes) == (n == most)
        assert room.specs(n) == specs and len(told) == sum(map(bool, whole))


def test_usual_messages_fit():
    message = [
        {"axes": [(0, 1), (7, 0)], "dtype": "<f4", "requires_grad": True, "wire": ""},
        {"axes": [(9, 0)], "dtype": "<f4", "requires_grad": None, "wire": ""},
    ]
    room = Room(found(message), at(message, 4), PIECE_BYTES)
    fits = [room.holds(at(message, n) if n else ()) for n in range(6)]
    assert fits == [0, 1, 2, 3, 4, None]
    # Arrays in several pieces are described.
    assert Room(found(message), at(message, 4), 4 * 7 * 4 - 1).piece is None
    assert str(found(message)) == "(n, 7) float32, (9,) float32"


def specs(*shapes, **others):
    return tuple(TensorSpec(shape, "<f4", True)._replace(**others) for shape in shapes)


@pytest.mark.parametrize(
    "seen, reason",
    [
        ({n: () for n in SIZES}, "no message was seen"),
        ({}, "no message was seen"),
        ({2: specs((2,)), 3: (), 5: specs((5,))}, "the number of arrays varies"),
        (
            {2: specs((2,)), 3: specs((3,)), 5: specs((6,))},
            r"array 0 has the shape \(6,\) for 5 samples, where fewer samples let"
            r" expect \(5,\)",
        ),
        (
            {2: specs((2,)), 3: specs((3,)), 5: specs((5,), dtype="<f8")},
            "array 0 varies in its dtype",
        ),
        (
            {2: specs((2,)), 3: specs((3,), order=(0,)), 5: specs((5,))},
            "array 0 varies in its order",
        ),
        (
            {2: specs((2,)), 3: specs((3,)), 5: specs((5,), key=(0, "a"))},
            "array 0 varies in its key",
        ),
        (
            {2: specs((2,)), 3: specs((3,)), 5: specs(None)},
            "gradient 0 is missing for some samples only",
        ),
        ({2: specs((2,)), 3: specs((3, 1)), 5: specs((5,))}, "array 0 has the shape"),
    ],
)
def test_reasons_why_shapes_are_not_static(seen, reason):
    with pytest.raises(NotStaticError, match=reason):
        StaticShapes(seen)


def test_shapes_that_are_no_multiples_of_the_samples():
    seen = {n: specs((2 * n + 1, n - 2, 4 - 0 * n)) for n in SIZES}
    shapes = StaticShapes(seen)
    assert str(shapes) == "(2n + 1, n - 2, 4) float32"
    assert math.prod(shapes.at(2)[0].shape) == 0
