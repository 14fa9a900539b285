import pytest

from divisible.communication.errors import DisagreementError
from model_compression.all_or_none import on_all_ranks


def fails():
    raise MemoryError("no room")


@pytest.mark.parametrize("theirs", [None, "MemoryError: no room"])
def test_what_fails_on_a_rank_fails_on_all(theirs):
    said = []

    def gather(words):
        said.append(words)
        return [words, theirs]

    with pytest.raises(MemoryError, match="no room"):
        on_all_ranks(fails, gather)
    if theirs is None:
        assert on_all_ranks(lambda: "made", gather) == "made"
    else:
        words = "nothing was changed: rank 1: MemoryError: no room"
        with pytest.raises(DisagreementError, match=words):
            on_all_ranks(lambda: "made", gather)
    # What a rank has to say is said once, and before anything is raised.
    assert said == ["MemoryError: no room", None]
