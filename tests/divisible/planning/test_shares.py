from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.planning.shares import integer_shares

SHARES = st.lists(
    st.integers(1, 10**6)
    | st.floats(2.0**-40, 2.0**40)
    | st.sampled_from([5e-324, 1, 2, 3, 2.0**62]),
    min_size=1,
    max_size=9,
)


@st.composite
def problems(draw):
    shares, least = draw(SHARES), draw(st.integers(0, 5))
    total = least * len(shares) + draw(st.integers(0, 1000))
    return shares, total, least


def quotas(shares, total):
    shares = [Fraction(share) for share in shares]
    return [total * share / sum(shares) for share in shares]


@given(problems())
def test_nothing_is_lost_and_no_part_is_too_small(problem):
    shares, total, least = problem
    parts = integer_shares(shares, total, least)
    assert sum(parts) == total
    assert min(parts) >= least
    assert all(type(part) is int for part in parts)


@given(problems())
def test_each_part_is_within_one_of_its_share_of_what_the_raised_leave(problem):
    shares, total, least = problem
    parts = integer_shares(shares, total, least)

    def is_rounded(raised):
        kept = [i for i in range(len(shares)) if i not in raised]
        left = total - least * len(raised)
        exact = quotas([shares[i] for i in kept], left)
        return all(abs(parts[i] - quota) < 1 for i, quota in zip(kept, exact))

    # The smallest are raised.
    order = sorted(range(len(shares)), key=lambda i: (shares[i], -i))
    n_least = next((k for k, i in enumerate(order) if parts[i] != least), len(order))
    assert any(is_rounded(set(order[:k])) for k in range(n_least + 1))


@given(problems())
def test_without_a_least_each_is_within_one_of_its_share(problem):
    shares, total, _ = problem
    parts = integer_shares(shares, total, 0)
    assert all(abs(p - quota) < 1 for p, quota in zip(parts, quotas(shares, total)))


@given(problems())
def test_a_larger_share_never_gets_less(problem):
    shares, total, least = problem
    parts = integer_shares(shares, total, least)
    order = sorted(range(len(shares)), key=lambda i: (shares[i], -i))
    assert all(parts[i] <= parts[k] for i, k in zip(order, order[1:]))


@given(problems(), st.integers(-40, 40))
def test_only_the_ratio_counts(problem, exponent):
    shares, total, least = problem
    shares = [max(float(share), 2.0**-60) for share in shares]
    scaled = [min(share, 2.0**20) * 2.0**exponent for share in shares]
    shares = [min(share, 2.0**20) for share in shares]
    assert integer_shares(scaled, total, least) == integer_shares(shares, total, least)


@pytest.mark.parametrize(
    ("shares", "total", "least", "expected"),
    [
        ([1, 1, 1], 8, 1, [3, 3, 2]),
        ([1], 0, 0, [0]),
        ([1, 1, 1, 1, 1e6], 10, 1, [1, 1, 1, 1, 6]),
        ([0.1, 0.1, 0.1], 4, 1, [2, 1, 1]),
        # Raised by its remainder already: the others keep their exact shares.
        ([0.95, 5.05, 100], 106, 1, [1, 5, 100]),
        (np.float32([3, 1]), np.int64(8), np.int8(3), [5, 3]),
    ],
)
def test_examples(shares, total, least, expected):
    assert integer_shares(shares, total, least) == expected


@pytest.mark.parametrize("bad", [0, 0.0, -1, float("nan"), float("inf"), -0.0])
def test_a_share_that_is_not_positive_is_named(bad):
    with pytest.raises(ValueError, match=f"share 1 is {bad}: it must be"):
        integer_shares([1, bad, 1], 9)


@pytest.mark.parametrize(
    ("shares", "total", "least", "error", "message"),
    [
        ([], 4, 1, ValueError, "there are no shares"),
        ([1, 1], 1, 1, ValueError, "1 cannot be divided into 2 parts of at least 1"),
        ([1, 1], -1, 0, ValueError, "-1 cannot be divided into 2 parts"),
        ([1, 1], 4, -1, ValueError, "least must not be negative"),
        (["2", 1], 4, 1, TypeError, "share 0 is '2': it must be a number"),
        ([1, 1], 4.5, 1, TypeError, "total must be an integer"),
        ([1, 1], 4, None, TypeError, "least must be an integer"),
    ],
)
def test_what_makes_no_sense_is_refused(shares, total, least, error, message):
    with pytest.raises(error, match=message):
        integer_shares(shares, total, least)
