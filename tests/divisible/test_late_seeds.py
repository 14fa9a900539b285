"""Seeds that wait draw the same, and the user's stream goes on as if nobody drew."""

import copy
import pickle
import threading

import numpy as np
import pytest

from divisible.late_seeds import waiting_seeds

if not hasattr(np.random, "get_bit_generator"):
    pytest.skip("in this NumPy no seed can wait", allow_module_level=True)

WORDS = [7, 0, 3, 0, 1, 0, 1, 0, 5]
DRAWS = {
    "rand": lambda: np.random.rand(3),
    "scalar": np.random.rand,
    "odd normals": lambda: np.random.randn(3),
    "randint": lambda: np.random.randint(0, 9, 4),
    "permutation": lambda: np.random.permutation(5),
    "choice": lambda: np.random.choice(9, 3, replace=False),
    "binomial": lambda: np.random.binomial(4, 0.5, 3),
    "raw": lambda: np.random.get_bit_generator().random_raw(3),
    "bytes": lambda: list(np.random.bytes(5)),
    "state": lambda: np.random.get_state(legacy=False)["state"]["key"],
}


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(0)
    # A normal number waits, which is a part of the state.
    np.random.randn()


def expected_next():
    np.random.seed(0)
    return np.random.randn(4)[1:]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_drawn_is_what_the_seed_gives(draw):
    np.random.seed(WORDS)
    expected = draw(), draw()
    np.random.seed(0)
    np.random.randn()
    with waiting_seeds() as seeds:
        seeds.waiting = [1, 2, 3]
        seeds.waiting = WORDS
        found = draw(), draw()
    for ours, numpys in zip(found, expected):
        np.testing.assert_array_equal(ours, numpys)
    after = np.random.randn(3)
    np.testing.assert_array_equal(after, expected_next())


@pytest.mark.parametrize("own", ["nothing", "seed", "set_state"])
def test_the_users_stream_goes_on(own):
    other = np.random.RandomState(5).get_state()
    with waiting_seeds() as seeds:
        seeds.waiting = WORDS
        if own == "seed":
            np.random.seed(3)
            assert np.random.rand() == np.random.RandomState(3).rand()
        elif own == "set_state":
            np.random.set_state(other)
            assert np.random.rand() == np.random.RandomState(5).rand()
    after = np.random.randn(3)
    np.testing.assert_array_equal(after, expected_next())


def test_what_draws_before_there_is_a_seed_leaves_the_users_stream():
    with waiting_seeds():
        np.random.rand()
        np.random.randn()
    np.testing.assert_array_equal(np.random.randn(3), expected_next())


def test_blocks_of_two_threads_end_with_the_users_state():
    entered, left = threading.Event(), threading.Event()

    def other():
        with waiting_seeds() as seeds:
            seeds.waiting = WORDS
            np.random.rand()
            entered.set()
            left.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(60)
    with waiting_seeds() as seeds:
        seeds.waiting = [1]
        np.random.rand()
    left.set()
    thread.join()
    np.testing.assert_array_equal(np.random.randn(3), expected_next())


def test_an_error_of_the_seed_frees_the_lock():
    with waiting_seeds() as seeds:
        seeds.waiting = [-1]
        with pytest.raises(ValueError):
            np.random.rand()
        seeds.waiting = WORDS
        np.random.rand()


def test_a_state_goes_into_another_process_generator():
    with waiting_seeds():
        pass
    state = pickle.loads(pickle.dumps(np.random.get_state(legacy=False)))
    other = np.random.RandomState()
    other.set_state(state)
    np.testing.assert_array_equal(other.randn(3), np.random.randn(3))


def test_who_asks_is_told_whether_the_user_has_seeded():
    assert np.random.get_bit_generator().seed_seq is None
    with waiting_seeds():
        pass
    assert np.random.get_bit_generator().seed_seq is None


def test_another_kind_of_generator_stays():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(theirs := np.random.PCG64(1))
    try:
        np.random.seed(WORDS)
        expected = np.random.rand()
        np.random.seed(3)
        with waiting_seeds() as seeds:
            seeds.waiting = WORDS
            assert np.random.rand() == expected
        after = np.random.rand()
        np.random.seed(3)
        assert np.random.rand() == after
        assert np.random.get_bit_generator() is theirs
    finally:
        np.random.set_bit_generator(before)


def test_copies_and_files_have_numpys_own_generator():
    with waiting_seeds() as seeds:
        seeds.waiting = WORDS
        generator = np.random.get_bit_generator()
        copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    np.random.seed(WORDS)
    expected = np.random.rand()
    for each in copies:
        assert type(each) is np.random.MT19937
        assert np.random.RandomState(each).rand() == expected


def test_a_generator_of_the_users_own_stays():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(theirs := np.random.MT19937(1))
    try:
        with waiting_seeds() as seeds:
            seeds.waiting = WORDS
            np.random.rand()
        assert np.random.get_bit_generator() is theirs
        assert np.random.rand() == np.random.RandomState(np.random.MT19937(1)).rand()
    finally:
        np.random.set_bit_generator(before)
