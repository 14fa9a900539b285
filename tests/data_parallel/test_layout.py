"""Every element of every array lies in one place of one message."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_parallel.arrays import Spec
from data_parallel.layout import Layouts, Shape, layout

shapes = st.builds(
    Shape,
    n_lanes=st.integers(1, 4),
    n_nodes=st.integers(1, 4),
    block=st.sampled_from([16, 32, 256]),
    bucket=st.integers(0, 3000),
    chunk=st.integers(1, 2000),
    minimum=st.sampled_from([0, 1, 100, 1000, 2**62]),
)
arrays = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 40), st.integers(0, 1500), st.just(256)),
        st.booleans(),
    ),
    max_size=12,
)


def of(arrays):
    return [size for size, _ in arrays], [is_exact for _, is_exact in arrays]


@given(arrays, shapes)
def test_each_element_has_one_place(arrays, shape):
    sizes, are_exact = of(arrays)
    counts = [np.zeros(size, int) for size in sizes]
    for number, bucket in enumerate(layout(sizes, are_exact, shape)):
        assert bucket.number == number
        for unit in bucket.units:
            assert unit.bucket == number and 0 <= unit.lane < shape.n_lanes
            assert len(unit.parts) == shape.n_nodes
            assert not all(part.is_empty for part in unit.parts)
            for part in unit.parts:
                for segment in (*part.coded, *part.exact):
                    assert segment.array in bucket.arrays
                    counts[segment.array][segment.elements] += 1
    for size, count in zip(sizes, counts):
        assert count.tolist() == [1] * size


@given(arrays, shapes)
def test_regions_have_room_for_their_segments(arrays, shape):
    sizes, are_exact = of(arrays)
    for bucket in layout(sizes, are_exact, shape):
        for part in (part for unit in bucket.units for part in unit.parts):
            for segments, n, block in (
                (part.coded, part.n_coded, shape.block),
                (part.exact, part.n_exact, 1),
            ):
                end = 0
                for array, elements, place in segments:
                    # Without gaps, but for the rest of an array's last block.
                    assert place.start == -(-end // block) * block
                    assert elements.start % block == 0
                    assert elements.stop % block == 0 or elements.stop == sizes[array]
                    assert elements.stop - elements.start == place.stop - place.start
                    end = place.stop
                assert end <= n < end + block
                assert n == end or block > 1


@given(arrays, shapes)
def test_exact_are_those_that_must_be_and_small_buckets(arrays, shape):
    sizes, are_exact = of(arrays)
    for bucket in layout(sizes, are_exact, shape):
        coded = [i for i in bucket.arrays if not are_exact[i]]
        if sum(sizes[i] for i in coded) < shape.minimum:
            coded = []
        assert sorted([*coded, *bucket.exact]) == sorted(bucket.arrays)
        for part in (part for unit in bucket.units for part in unit.parts):
            assert {segment.array for segment in part.coded} <= {*coded}
            assert {segment.array for segment in part.exact} <= {*bucket.exact}


@given(arrays, shapes)
def test_buckets_follow_each_other_and_are_as_full_as_may_be(arrays, shape):
    sizes, are_exact = of(arrays)
    buckets = [bucket.arrays for bucket in layout(sizes, are_exact, shape)]
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    totals = [sum(sizes[i] for i in bucket) for bucket in buckets]
    for bucket, total in zip(buckets, totals):
        assert total <= shape.bucket or len(bucket) == 1 or total == 0
    for total, following in zip(totals, buckets[1:]):
        assert total + sizes[following[0]] > shape.bucket


@given(arrays, shapes)
def test_chunks_are_not_much_larger_than_asked_for(arrays, shape):
    sizes, are_exact = of(arrays)
    for bucket in layout(sizes, are_exact, shape):
        for unit in bucket.units:
            for part in unit.parts:
                # Each cut rounds up to a block, or to an element.
                most = shape.chunk / shape.n_lanes / shape.n_nodes
                assert part.n_coded + part.n_exact <= most + 3 * shape.block + 3


def spec(name="0", shape=(3,), is_exempt=False):
    return Spec(name, shape, "f", is_exempt)


def test_a_layout_is_kept_for_the_same_arrays():
    cut = Shape(1, 2, 16, 100, 100, 0)
    layouts = Layouts(cut, is_fp32=False)
    assert layouts.fit([spec()])
    buckets = layouts.buckets
    assert not layouts.fit([spec()]) and layouts.buckets is buckets
    for other in [spec(shape=(4,)), spec(is_exempt=True), spec(name="1")]:
        assert layouts.fit([other])
        assert layouts.summary[1:] == ["minimum=0", str(other)]
    layouts.shape = cut._replace(minimum=7)
    assert layouts.fit([other])
    assert layouts.summary[1] == "minimum=7"
    assert layouts.buckets[0].exact == (0,)


def test_all_is_exact_in_float32():
    layouts = Layouts(Shape(1, 2, 16, 100, 100, 0), is_fp32=True)
    layouts.fit([spec()])
    assert layouts.buckets[0].exact == (0,)


def test_nothing_has_no_buckets():
    layouts = Layouts(Shape(1, 2, 16, 100, 100, 0), is_fp32=True)
    assert layouts.fit([]) and layouts.buckets == []
    assert layouts.summary == ["arrays to exchange", "minimum=0"]
