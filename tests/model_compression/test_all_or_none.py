import pytest

from divisible.communication.errors import DisagreementError
from model_compression.all_or_none import on_all_ranks


def fails():
    raise MemoryError("no room")


def refuses():
    raise ValueError("what is kept is not known")


NO_ROOM, REFUSED = ("MemoryError: no room", False), ("ValueError: not known", True)


@pytest.mark.parametrize("theirs", [None, NO_ROOM])
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
    assert said == [NO_ROOM, None]


@pytest.mark.parametrize(
    "make, theirs, error, words",
    [
        (refuses, None, ValueError, "^what is kept is not known"),
        (refuses, REFUSED, ValueError, "^what is kept is not known"),
        (lambda: "made", REFUSED, ValueError, "rank 1: ValueError: not known"),
        # Where something else fails on a rank, it counts on all.
        (refuses, NO_ROOM, DisagreementError, "rank 1: MemoryError: no room"),
        (fails, REFUSED, MemoryError, "^no room"),
        (lambda: "made", NO_ROOM, DisagreementError, "rank 1: MemoryError: no room"),
    ],
)
def test_ranks_refuse_alike(make, theirs, error, words):
    with pytest.raises(error, match=words) as raised:
        on_all_ranks(make, lambda mine: [mine, theirs])
    assert type(raised.value) is error
