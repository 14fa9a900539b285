import pytest

from divisible.communication.attempts import Failure, on_all_ranks
from divisible.communication.errors import DisagreementError


def fails():
    raise MemoryError("no room")


def refuses():
    raise ValueError("what is kept is not known")


NO_ROOM = Failure("MemoryError: no room", is_refusal=False)
REFUSED = Failure("ValueError: not known", is_refusal=True)
WHAT = "nothing was changed"


@pytest.mark.parametrize("theirs", [None, NO_ROOM])
def test_what_fails_on_a_rank_fails_on_all(theirs):
    said = []

    def gather(words):
        said.append(words)
        return [words, theirs]

    with pytest.raises(MemoryError, match="no room"):
        on_all_ranks(gather, WHAT, fails)
    if theirs is None:
        assert on_all_ranks(gather, WHAT, lambda: "made") == "made"
    else:
        words = "nothing was changed: rank 1: MemoryError: no room"
        with pytest.raises(DisagreementError, match=words):
            on_all_ranks(gather, WHAT, lambda: "made")
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
    def gather(mine):
        return [mine, theirs]

    with pytest.raises(error, match=words) as raised:
        on_all_ranks(gather, WHAT, make, refusal=ValueError)
    assert type(raised.value) is error
    if words == "rank 1: ValueError: not known":
        with pytest.raises(DisagreementError, match=words):
            on_all_ranks(gather, WHAT, make)


@pytest.mark.parametrize("make", [fails, refuses, lambda: "made"])
@pytest.mark.parametrize("theirs", [NO_ROOM, REFUSED])
def test_a_class_of_errors_is_raised_on_all(make, theirs):
    def gather(mine):
        return [None, mine, theirs]

    with pytest.raises(OSError, match="^nothing was changed: rank [12]: ") as raised:
        on_all_ranks(gather, WHAT, make, error=OSError)
    cause = raised.value.__cause__
    assert (cause is None) == ("rank 2" in str(raised.value))
