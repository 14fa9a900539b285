"""What an exchange leaves: within its bound, and as the paper prints it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel import simulate_exchange
from divisible.communication.wire import WIRE

names = st.sampled_from(sorted(WIRE))


@st.composite
def replicas(draw, most=64):
    """Gradients of one shape, with blocks of zeros and far magnitudes."""
    n_replicas = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, most]))
    n = draw(st.integers(0, 300))
    random = np.random.RandomState(draw(st.integers(0, 2**32 - 1)))
    scale = 2.0 ** draw(st.integers(-110, 110))
    gradients = random.standard_normal((n_replicas, n)) * scale
    gradients *= 2.0 ** random.randint(-12, 12, (n_replicas, 1))
    gradients[:, : draw(st.integers(0, 40))] = 0
    return [np.clip(g, -3e38, 3e38).astype("f") for g in gradients]


@given(replicas(), names, st.integers(1, 9), st.sampled_from([16, 64]), st.booleans())
def test_two_roundings_keep_to_their_bound(gradients, name, local, block, is_unequal):
    n = len(gradients)
    n_samples = list(range(1, n + 1)) if is_unequal else None
    shares = np.array(n_samples or [1] * n, "d") / sum(n_samples or [1] * n)
    result = simulate_exchange(
        gradients,
        exchange_dtype=name,
        local_size=local,
        n_samples=n_samples,
        block=block,
    )
    parts = [share * g.astype("d") for share, g in zip(shares, gradients)]
    exact = np.sum(parts, axis=0)
    if name == "fp16" and any(np.abs(p).max(initial=0) > 65504 for p in [*parts]):
        return
    wire = WIRE[name]
    first = np.sum([wire.bound(part, block) for part in parts], axis=0)
    # What the replicas of a node add up is encoded once, which costs no more.
    bound = first + wire.bound(np.abs(exact) + first, block)
    arithmetic = n * 2.0**-22 * np.sum(np.abs(parts), axis=0) + n * 2.0**-148
    assert (np.abs(result.mean - exact) <= bound + arithmetic).all()
    assert result.mean.dtype == np.float32 and result.codes is None


def to_e5m2(x, rounding):
    """Rounds to e5m2, as the paper does or to nearest even; returns float64 values."""
    if rounding == "truncate":
        with np.errstate(over="ignore"):
            halves = x.astype(np.float16)
        values = (halves.view(np.uint16) & 0xFF00).view(np.float16).astype("d")
    else:
        step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(x), 2.0**-14))) - 2)
        values = np.rint(x.astype("d") / step) * step
    return np.clip(values, -57344, 57344)


def algorithm_1(gradients, weights, local_size, q, rounding, epsilon=1e-5):
    """Lines 9 to 26 as printed, in the simplest way."""
    size = np.abs(weights) + np.float32(epsilon)
    ratios = [gradient / size for gradient in gradients]
    scale = np.float32(57344 / q / local_size)
    sent = [to_e5m2(ratio * scale, rounding) for ratio in ratios]
    n_nodes = len(gradients) // local_size
    sums = []
    for node in range(n_nodes):
        total = sent[node * local_size]
        for codes in sent[node * local_size + 1 : (node + 1) * local_size]:
            total = to_e5m2((total + codes).astype("f"), rounding)
        if n_nodes > 1:
            total = to_e5m2(total.astype("f") * np.float32(1 / n_nodes), rounding)
        sums.append(total)
    total = sums[0]
    for other in sums[1:]:
        total = to_e5m2((total + other).astype("f"), rounding)
    return total.astype("f") * np.float32(q / 57344) * size


@given(
    st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3), (8, 8), (8, 1)]),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["truncate", "nearest"]),
)
def test_algorithm_1_bit_by_bit(sizes, seed, rounding):
    n, local_size = sizes
    random = np.random.RandomState(seed)
    weights = (random.standard_normal((7, 11)) * 0.1).astype("f")
    scale = 10.0 ** random.randint(-9, 3)
    gradients = [(random.standard_normal((7, 11)) * scale).astype("f")] * n
    gradients = [g * np.float32(random.uniform(-1, 2)) for g in gradients]
    found = simulate_exchange(
        gradients,
        exchange_dtype="fp8",
        strategy="oyama2017",
        local_size=local_size,
        weights=weights,
        rounding=rounding,
    )
    size = np.abs(weights) + np.float32(1e-5)
    q = max(np.quantile(np.abs(g / size), 0.95) for g in gradients)
    assert found.q == q
    np.testing.assert_array_equal(
        found.mean, algorithm_1(gradients, weights, local_size, q, rounding)
    )
    assert found.codes.dtype == np.uint8 and found.codes.shape == (77,)


def test_zeros_have_the_quantile_1_and_stay():
    zeros = [np.zeros(5, "f")] * 2
    found = simulate_exchange(
        zeros, exchange_dtype="fp8", strategy="oyama2017", weights=zeros[0]
    )
    assert found.q == 1
    np.testing.assert_array_equal(found.mean, zeros[0])


def test_samples_are_drawn_once_each():
    gradient = np.arange(1, 2001, dtype="f")
    few = simulate_exchange(
        [gradient],
        exchange_dtype="fp8",
        strategy="oyama2017",
        weights=gradient,
        samples=10,
    )
    all_of_them = simulate_exchange(
        [gradient],
        exchange_dtype="fp8",
        strategy="oyama2017",
        weights=gradient,
        samples=2000,
    )
    assert few.q == pytest.approx(all_of_them.q, rel=1e-3)


def test_the_range_does_not_keep_the_size_of_the_gradient():
    """The projection on the exact mean; notes on the paper have the same figures."""
    random = np.random.RandomState(0)
    weights = (random.standard_normal(20000) * 0.05).astype("f")
    for n, local_size, gain in ((2, 1, 0.85), (8, 4, 0.76), (64, 8, 0.51)):
        exact = random.standard_normal(20000) * 1e-3 * np.abs(weights)
        gradients = [exact.astype("f")] * n
        found = simulate_exchange(
            gradients,
            exchange_dtype="fp8",
            strategy="oyama2017",
            local_size=local_size,
            weights=weights,
            samples=20000,
        ).mean
        assert found @ exact / (exact @ exact) == pytest.approx(gain, abs=0.15)


def test_error_feedback_adds_up_to_the_exact_mean():
    random = np.random.RandomState(0)
    gradients = [random.standard_normal(1000).astype("f") for _ in range(4)]
    residuals = [np.zeros(1000, "f")] * 4
    total = np.zeros(1000)
    for _ in range(50):
        result = simulate_exchange(
            gradients,
            exchange_dtype="e5m2",
            local_size=2,
            block=64,
            residuals=residuals,
        )
        residuals = result.residuals
        total += result.mean
    exact = np.mean(gradients, axis=0)
    once = simulate_exchange(
        gradients, exchange_dtype="e5m2", local_size=2, block=64
    ).mean
    # The second rounding, of the sum, has no memory.
    assert np.abs(total / 50 - exact).mean() < 0.8 * np.abs(once - exact).mean()


@pytest.mark.parametrize("local_size", [1, 2, 4])
def test_a_replica_without_samples_keeps_its_errors(local_size):
    random = np.random.RandomState(0)
    before = [random.standard_normal((4, 75)).astype("f") for _ in range(4)]
    gradients = [random.standard_normal((4, 75)).astype("f") for _ in range(4)]
    result = simulate_exchange(
        gradients,
        exchange_dtype="int8",
        local_size=local_size,
        block=16,
        n_samples=[3, 0, 0, 2],
        residuals=before,
    )
    for i, (kept, own) in enumerate(zip(result.residuals, before)):
        assert (kept.tobytes() == own.tobytes()) == (i in (1, 2))


CODED = [(name, "two_roundings") for name in WIRE] + [("fp8", "oyama2017")]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name, strategy", CODED)
def test_what_is_not_finite_on_one_replica_is_in_the_mean(name, strategy, bad):
    """As it is in NumPy's mean, so that the step is skipped."""
    random = np.random.RandomState(0)
    gradients = [random.standard_normal(300).astype("f") for _ in range(4)]
    gradients[2][7] = bad
    assert not np.isfinite(np.mean(gradients, axis=0)[7])
    is_paper = strategy == "oyama2017"
    options = {"strategy": strategy, "weights": np.ones(300, "f") if is_paper else None}
    before = [random.standard_normal(300).astype("f") for _ in range(4)]
    for local_size in (1, 2, 4):
        for residuals in [None] if is_paper else [None, before]:
            found = simulate_exchange(
                gradients,
                exchange_dtype=name,
                local_size=local_size,
                residuals=residuals,
                **options,
            )
            assert not np.isfinite(found.mean[7]), local_size
            assert residuals is None or all(
                map(np.array_equal, found.residuals, before)
            )


def test_a_sum_that_overflows_is_in_the_mean():
    gradients = [np.full(20, 3e38, "f"), np.full(20, 3e38, "f")]
    n_samples = [1, 0]
    found = simulate_exchange(gradients, exchange_dtype="int8", n_samples=n_samples)
    assert np.isfinite(found.mean).all()
    gradients[1][3] = np.inf
    # A replica without samples counts nothing: zero times infinity is no number.
    found = simulate_exchange(gradients, exchange_dtype="int8", n_samples=n_samples)
    assert np.isnan(found.mean).all()


def test_bytes_of_one_that_sends_most():
    gradients = [np.ones(1024, "f")] * 4
    # To each of three others a quarter, and a quarter of the sum back.
    assert simulate_exchange(gradients, exchange_dtype="fp32").sent_bytes == 6 * 4 * 256
    assert simulate_exchange(gradients, exchange_dtype="int8").sent_bytes == 6 * (
        256 + 4
    )
    two_nodes = simulate_exchange(gradients, exchange_dtype="fp32", local_size=2)
    assert two_nodes.sent_bytes == 2 * 4 * 256
    assert (
        simulate_exchange(gradients, exchange_dtype="int8", local_size=4).sent_bytes
        == 0
    )


A, B = np.ones(3, "f"), np.ones(4, "f")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"gradients": []}, ValueError, "at least one"),
        ({"gradients": [A, B]}, ValueError, r"gradients\[1\] is \(4,\), not \(3,\)"),
        ({"gradients": [A.astype("d")]}, TypeError, "must be float32, not float64"),
        ({"exchange_dtype": "int3"}, ValueError, "int4, fp8, not 'int3'"),
        ({"strategy": "ring"}, ValueError, "'two_roundings' or 'oyama2017', not ring"),
        ({"block": 24}, ValueError, "multiple of 16, not 24"),
        ({"block": 0}, ValueError, "multiple of 16, not 0"),
        ({"local_size": 0}, ValueError, "local_size must be 1 or more, not 0"),
        ({"n_samples": [1, 2, 3]}, ValueError, "for each of 2 replicas"),
        ({"rounding": "truncate"}, ValueError, "is of strategy 'oyama2017'"),
        (
            {"strategy": "oyama2017", "exchange_dtype": "int8"},
            ValueError,
            "sends e5m2, not 'int8'",
        ),
        (
            {"strategy": "oyama2017", "exchange_dtype": "fp8"},
            ValueError,
            "give weights",
        ),
        (
            {"strategy": "oyama2017", "exchange_dtype": "fp8", "weights": B},
            ValueError,
            r"weights\[0\] is \(4,\), not \(3,\)",
        ),
        (
            {
                "gradients": [A] * 3,
                "strategy": "oyama2017",
                "exchange_dtype": "fp8",
                "weights": A,
                "local_size": 2,
            },
            ValueError,
            "3 are no multiple of local_size = 2",
        ),
        ({"residuals": [A]}, ValueError, "for each of 2 replicas"),
    ],
)
def test_what_is_refused(arguments, error, words):
    arguments = {"gradients": [A, A], **arguments}
    with pytest.raises(error, match=words):
        simulate_exchange(**arguments)
