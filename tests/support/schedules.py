"""Schedules of every name for property tests."""

from hypothesis import strategies as st

from divisible.schedules.catalogue import CATALOGUE, NAMES, Placement, create


def stages_per_rank(name, chunks):
    """Returns ``chunks`` where a rank may have any number of stages."""
    entry = CATALOGUE[name]
    return chunks if entry.placement is Placement.LOOP else entry.stages_per_rank


@st.composite
def named_schedules(draw, max_ranks=5, max_microbatches=8, max_chunks=4):
    """Draws a schedule of some name."""
    name = draw(st.sampled_from(NAMES))
    n_ranks = draw(st.integers(1, max_ranks))
    chunks = stages_per_rank(name, draw(st.integers(1, max_chunks)))
    n_microbatches = draw(st.integers(1, max_microbatches))
    return create(name, n_ranks * chunks, n_microbatches, n_ranks)


def held_moments(schedule):
    """Walks the actions: for each stage all (in flight, graphs, pending) there are."""
    again = {
        (stage, microbatch)
        for row in schedule.actions
        for stage, kind, microbatch in row
        if kind == "R"
    }
    moments = [{(0, 0, 0)} for _ in range(schedule.n_stages)]
    held = [(set(), set(), set()) for _ in range(schedule.n_stages)]
    for row in schedule.actions:
        for stage, kind, microbatch in row:
            in_flight, graphs, pending = held[stage]
            if kind == "F":
                in_flight.add(microbatch)
            if kind == "R" or (kind == "F" and (stage, microbatch) not in again):
                graphs.add(microbatch)
            if kind in "BI":
                in_flight.remove(microbatch)
                graphs.remove(microbatch)
            if kind == "I":
                pending.add(microbatch)
            if kind == "W":
                pending.remove(microbatch)
            moments[stage].add((len(in_flight), len(graphs), len(pending)))
    return moments
