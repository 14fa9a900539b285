"""Tags do not meet, and waits end."""

import itertools

import pytest

from pipeline.messages import communicator
from pipeline.messages.communicator import (
    TARGETS_CHANNEL,
    StallError,
    channel_tags,
    wait,
)


def test_no_tag_has_two_meanings():
    names = [name for name in vars(communicator) if name.endswith("_TAG")]
    tags = [getattr(communicator, name) for name in names]
    for channel in (0, 1, TARGETS_CHANNEL - 1, TARGETS_CHANNEL):
        tags += channel_tags(channel)
    assert len(tags) == 5 + 4 * 3
    assert len(set(tags)) == len(tags)
    # What every MPI library has.
    assert 0 <= min(tags) <= max(tags) <= 32767


@pytest.mark.parametrize("channel", [-1, TARGETS_CHANNEL + 1])
def test_there_are_no_tags_for_too_many_channels(channel):
    with pytest.raises(ValueError, match=f"no tags for channel {channel}"):
        channel_tags(channel)


@pytest.mark.parametrize("seconds, stalls", [(1.0, True), (400.0, False)])
def test_time_in_which_a_process_is_suspended_is_no_wait(seconds, stalls, monkeypatch):
    """It jumps between two polls, a few times."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(communicator.time, "perf_counter", lambda: next(clock))
    answers = iter([False] * 8 + [True])

    def waited():
        return wait(lambda: next(answers), 5.0 if stalls else 10.0, lambda: "rank 1")

    if not stalls:
        assert waited() is True
        return
    with pytest.raises(StallError, match="waited 6 s for rank 1"):
        waited()
