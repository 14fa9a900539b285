"""Hidden units as rows of blocks."""

import numpy as np
import pytest

from heterogeneous.units import Block, initial, shape_of

N, M, OUT = 5, 12, 3


def arrays(units=(0, M)):
    drawn = initial(7, units, N, M, OUT, "f")
    drawn["b"] = np.arange(*units, dtype="f")
    return list(drawn), list(drawn.values())


def test_units_travel_with_all_their_weights():
    names, there = arrays()
    _, here = arrays((2, 9))
    source, target = Block(names, there, 0), Block(names, here, 2)
    assert source.width == N + OUT + 1
    for array in there:
        array += 1
    block = source.pack(4, 7)
    assert block.shape == (3, source.width) and block.flags.c_contiguous
    target.unpack(block, 4, 7)
    w, v, b = here
    np.testing.assert_array_equal(w[2:5], there[0][4:7])
    np.testing.assert_array_equal(v[:, 2:5], there[1][:, 4:7])
    np.testing.assert_array_equal(b[2:5], there[2][4:7])
    assert not (w[:2] == there[0][2:4]).any()
    target.copy(source, 2, 9)
    np.testing.assert_array_equal(v, there[1][:, 2:9])


def test_first_weights_are_those_of_the_unit():
    _, everything = arrays()
    for units in [(0, 3), (3, 12), (5, 6)]:
        w, v, _ = arrays(units)[1]
        np.testing.assert_array_equal(w, everything[0][slice(*units)])
        np.testing.assert_array_equal(v, everything[1][:, slice(*units)])
    assert not np.array_equal(everything[0], initial(8, (0, M), N, M, OUT, "f")["W"])


def test_first_weights_have_the_variance_of_chainers():
    drawn = initial(0, (0, 2000), 50, 2000, 40, np.float64)
    assert drawn["W"].var() == pytest.approx(1 / 50, rel=0.02)
    assert drawn["V"].var() == pytest.approx(1 / 2000, rel=0.02)
    assert not drawn["b"].any()


def test_shapes_of_other_numbers_of_units():
    names, own = arrays()
    found = [shape_of(name, array, 4) for name, array in zip(names, own)]
    assert found == [(4, N), (OUT, 4), (4,)]
