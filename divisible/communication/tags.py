"""Who uses which tag of a communicator."""

from __future__ import annotations

# What a pipeline's communicator carries, by tags: MPI has at least those up to 32767.
BROADCAST_TAG = 32767
CLOCK_TAG = 32766
FAREWELL_TAG = 32765
# Of a user's communicator as well, but only where something has gone wrong.
ROLL_CALL_TAG = 32764
ANSWER_TAG = 32763
# Of a user's communicator where links are measured, before there is a pipeline.
PROBE_TAG = 32762
#: Of no message.
UNUSED_TAG = 32761
# The channels of a transport have the tags from 0, each three of them.
_TAGS_PER_CHANNEL = 3
#: The last channel, for layers that move to other stages between two minibatches.
MOVED_LAYERS_CHANNEL = UNUSED_TAG // _TAGS_PER_CHANNEL - 1
#: The one before it, for targets; those before that are for stages.
TARGETS_CHANNEL = MOVED_LAYERS_CHANNEL - 1


def channel_tags(channel: int) -> range:
    """Returns the tags of a channel.

    Args:
        channel (int): Its number, from 0.

    Raises:
        ValueError: If there are no tags left for it.
    """
    if not 0 <= channel <= MOVED_LAYERS_CHANNEL:
        raise ValueError(
            f"there are no tags for channel {channel}: the stages, skip connections and"
            f" ties of a pipeline have {TARGETS_CHANNEL} channels at most"
        )
    start = _TAGS_PER_CHANNEL * channel
    return range(start, start + _TAGS_PER_CHANNEL)
