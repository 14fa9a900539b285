"""Layers to run again: the cheapest with which a stage fits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divisible import LayerCost, MemoryLimitError, Network, Profile, schedules
from divisible.planning.cost_model import CostModel
from divisible.planning.layer_choice import layers_to_recompute, recomputing
from divisible.planning.recomputed_cuts import recomputed_cuts
from divisible.schedules.catalogue import ONE_PER_RANK
from tests.support.examples import examples


def model_of(layers, name="1f1b", d=1, m=4, loss=None):
    profile = Profile(layers, n_samples=1, input_bytes=5, loss=loss)
    schedule = schedules.create(name, d, m)
    return CostModel.of(schedule, [profile] * m, np.ones(d), Network().links(d))


def all_runs(start, end):
    """Yields every way to run layers again: any runs, in any number."""
    if start == end:
        yield ()
        return
    for rest in all_runs(start + 1, end):
        yield rest
    for stop in range(start + 1, end + 1):
        for rest in all_runs(stop, end):
            yield ((start, stop), *rest)


def seconds_again(model, runs):
    forward = model.largest.column("forward")
    return sum(forward[start:end].sum() for start, end in runs)


def least_seconds(model, cuts, stage, limit):
    """Returns the least seconds of a stage's second forwards, by trying all ways."""
    best = np.inf
    for runs in all_runs(cuts[stage], cuts[stage + 1]):
        seconds = seconds_again(model, runs)
        if seconds < best:
            changed = recomputing(model, runs, cuts)
            if changed.bytes(cuts)[stage] <= limit:
                best = seconds
    return best


sizes = st.integers(0, 100)


@st.composite
def layers(draw, most):
    n = draw(st.integers(1, most))
    # A skip connection past some layers, from one of them to another.
    begin, stop = sorted(draw(st.tuples(*[st.integers(0, n - 1)] * 2)))
    carried = draw(sizes)
    found = []
    for i in range(n):
        passes = carried * (begin <= i < stop)
        found.append(
            LayerCost(
                draw(st.floats(0.01, 10)),
                1.0,
                1.0,
                output_bytes=draw(sizes) + passes,
                passing_bytes=passes,
                skip_bytes=carried * (i == stop != begin),
                activation_bytes=draw(sizes),
                boundary_output_bytes=draw(sizes),
                parameter_bytes=draw(sizes),
                pending_bytes=draw(sizes),
                workspace_bytes=draw(sizes),
            )
        )
    return found


@examples(40)
@given(layers(6), st.sampled_from(ONE_PER_RANK), st.floats(0.3, 1.0), st.booleans())
def test_the_choice_for_a_stage_is_the_best_of_all(layers, name, share, has_loss):
    loss = LayerCost(0.5, 0.5, 0, activation_bytes=30, workspace_bytes=9)
    model = model_of(layers, name, loss=loss if has_loss else None)
    cuts = [0, len(layers)]
    limit = share * model.bytes(cuts)[0]
    least = least_seconds(model, cuts, 0, limit)
    found = layers_to_recompute(model, cuts, np.array([limit]))
    if found is None:
        assert least == np.inf
        return
    assert seconds_again(model, found) == pytest.approx(least)
    assert recomputing(model, found, cuts).bytes(cuts)[0] <= limit * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_twelve_layers(seed):
    """All ways by arithmetic of its own: plain layers, and layers that begin a run."""
    random, n, m = np.random.RandomState(seed), 12, 3
    forward = random.uniform(0.01, 10, n)
    held, output = random.randint(1, 100, (2, n)).astype(float)
    costs = [
        LayerCost(f, 1, 1, output_bytes=int(o), activation_bytes=int(h))
        for f, h, o in zip(forward, held, output)
    ]
    model = model_of(costs, "gpipe", m=m)
    limit = 0.55 * model.bytes([0, n])[0]

    def peak(runs):
        again = {i for run in runs for i in range(*run)}
        graph = sum(held[i] for i in range(n) if i not in again)
        graph += sum(output[end - 1] for _, end in runs if end < n)
        # What a backward needs while the layers behind a run have freed theirs.
        top = 0.0
        for start, end in runs:
            behind = [held[i] for i in range(end, n) if i not in again]
            behind += [output[stop - 1] for _, stop in runs if end < stop < n]
            top = max(top, held[start:end].sum() - sum(behind))
        return m * (5 + graph) + 5 + top

    ways = [runs for runs in all_runs(0, n) if peak(runs) <= limit]
    least = min(seconds_again(model, runs) for runs in ways)
    found = layers_to_recompute(model, [0, n], np.array([limit]))
    assert seconds_again(model, found) == pytest.approx(least)
    assert recomputing(model, found, [0, n]).bytes([0, n])[0] == peak(found)


@settings(deadline=None, max_examples=20)
@given(layers(5), st.integers(1, 3), st.floats(0.3, 1.1))
def test_the_cuts_are_the_best_of_all(layers, d, share):
    if len(layers) < d:
        return
    model = model_of(layers, d=d)
    n = len(layers)
    limits = np.full(d, share * model_of(layers).bytes([0, n])[0])
    best = np.inf
    for inner in itertools.combinations(range(1, n), d - 1):
        cuts = [0, *inner, n]
        plain = model.seconds(cuts)
        again = [least_seconds(model, cuts, s, limits[s]) for s in range(d)]
        best = min(best, (plain + again).max())
    if best == np.inf:
        with pytest.raises(MemoryLimitError, match="whichever layers"):
            recomputed_cuts(model, limits)
        return
    cuts = recomputed_cuts(model, limits)
    runs = layers_to_recompute(model, cuts, limits)
    changed = recomputing(model, runs, cuts)
    assert changed.seconds(cuts).max() == pytest.approx(best)
    assert (changed.bytes(cuts) <= limits * (1 + 1e-12)).all()


def test_many_layers_are_chosen_by_blocks():
    """A stage that fits with every second layer run again fits by blocks as well."""
    costs = [
        LayerCost(0.1 + i % 7, 1, 1, output_bytes=1, activation_bytes=100)
        for i in range(300)
    ]
    model = model_of(costs, "gpipe")
    cuts, limit = [0, 300], 0.5 * model.bytes([0, 300])[0]
    runs = layers_to_recompute(model, cuts, np.array([limit]))
    assert recomputing(model, runs, cuts).bytes(cuts)[0] <= limit
    whole = sum(cost.forward for cost in costs)
    assert seconds_again(model, runs) < 0.7 * whole
