"""The tags of all messages of a communicator."""

from __future__ import annotations

# Tags of messages over a pipeline's communicator. MPI has at least those up to 32767.
BROADCAST_TAG = 32767
CLOCK_TAG = 32766
EXIT_TAG = 32765
# Tags that are also used over a user's communicator, but only after an error.
QUESTION_TAG = 32764
ANSWER_TAG = 32763
# A tag over a user's communicator when links are measured, before a pipeline exists.
PROBE_TAG = 32762
#: The tag of a step's results, which are read later than messages sent after them.
RESULT_TAG = 32761
#: The tag of files: copies of a training run, for the memory of other hosts.
FILE_TAG = 32760
#: A tag that no message has.
UNUSED_TAG = 32759
# Channels of a transport have the tags from 0, three for each channel.
_TAGS_PER_CHANNEL = 3
#: The last channel, for layers that move to other stages between two minibatches.
MOVED_LAYERS_CHANNEL = UNUSED_TAG // _TAGS_PER_CHANNEL - 1
#: The channel before it, for targets. The channels before that are for stages.
TARGETS_CHANNEL = MOVED_LAYERS_CHANNEL - 1


def channel_tags(channel: int) -> range:
    """Returns the tags of a channel.

    Args:
        channel (int): Number of the channel, from 0.

    Raises:
        ValueError: If there are no tags left for the channel.
    """
    if not 0 <= channel <= MOVED_LAYERS_CHANNEL:
        raise ValueError(
            f"there are no tags for channel {channel}: the stages, skip connections and"
            f" ties of a pipeline have {TARGETS_CHANNEL} channels at most"
        )
    start = _TAGS_PER_CHANNEL * channel
    return range(start, start + _TAGS_PER_CHANNEL)
