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
