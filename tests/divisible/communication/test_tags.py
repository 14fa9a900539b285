"""Tags do not meet."""

import pytest

from divisible.communication import tags as all_tags
from divisible.communication.tags import MOVED_LAYERS_CHANNEL, channel_tags


def test_no_tag_has_two_meanings():
    names = [name for name in vars(all_tags) if name.endswith("_TAG")]
    tags = [getattr(all_tags, name) for name in names]
    for channel in (0, 1, MOVED_LAYERS_CHANNEL - 1, MOVED_LAYERS_CHANNEL):
        tags += channel_tags(channel)
    assert len(tags) == 9 + 4 * 3
    assert len(set(tags)) == len(tags)
    # What every MPI library has.
    assert 0 <= min(tags) <= max(tags) <= 32767


@pytest.mark.parametrize("channel", [-1, MOVED_LAYERS_CHANNEL + 1])
def test_there_are_no_tags_for_too_many_channels(channel):
    with pytest.raises(ValueError, match=f"no tags for channel {channel}"):
        channel_tags(channel)
