"""Skip connections within a model, without a pipeline."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, pop, stash
from divisible.skips import Skip

X = np.array([[-1, 2, 3]], np.float32)


def test_the_serial_model_passes_tensors_on():
    model = Divisible(stash("x"), F.relu, lambda x: x * 10, pop("x", F.add))
    np.testing.assert_array_equal(model(X).array, [[-1, 22, 33]])


def doubled(x):
    x *= 2
    return x


def test_an_array_that_the_next_layer_changes_in_place_is_as_it_was():
    model = Divisible(stash("x"), F.identity, pop("x", F.add))
    model.insert(1, doubled)
    np.testing.assert_array_equal(model(X.copy()).array, 3 * X)
    pair = Divisible(
        lambda x: (x, F.relu(x)),
        stash("two"),
        lambda a, b: doubled(a) + b,
        pop("two", lambda y, a, b: y + 10 * a + 100 * b),
    )
    expected = 12 * X + 101 * F.relu(X).array
    np.testing.assert_array_equal(pair(X.copy()).array, expected)


def test_without_a_function_the_next_layer_gets_both():
    model = Divisible(stash("x"), F.relu, pop("x"), lambda y, x: y - x)
    np.testing.assert_array_equal(model(X).array, [[1, 0, 0]])


def test_several_tensors_are_stashed_as_one():
    model = Divisible(
        lambda x: (x, x + 1),
        stash("two"),
        lambda a, b: a,
        pop("two", lambda y, a, b: y + a * b),
    )
    np.testing.assert_array_equal(model(X), X + X * (X + 1))


def test_nested_models_have_names_of_their_own():
    def block():
        return Divisible(stash("x"), F.tanh, pop("x", F.add))

    model = Divisible(stash("x"), block(), block(), pop("x", F.add))
    y = X + np.tanh(X)
    np.testing.assert_allclose(model(X).array, y + np.tanh(y) + X, rtol=1e-6)


def test_a_stage_hands_over_and_takes():
    model = Divisible(
        L.Linear(3, 3), stash("a"), F.relu, L.Linear(3, 3), pop("a", F.add)
    )
    assert model.skips == (Skip("a", 1, 4),)
    first, second = model.divide(0, 3), model.divide(3, 5)
    assert first.skips == second.skips == model.skips
    y, handed_over = first.run((X,), {})
    assert handed_over.keys() == {"a"}
    z, nothing = second.run(y, handed_over)
    assert not nothing
    np.testing.assert_array_equal(z.array, model(X).array)
    with pytest.raises(KeyError, match=r"pop\('a', add\) has nothing to take"):
        second(y)


def test_a_tensor_may_have_several_users():
    layers = [stash("x"), F.relu, pop("x", F.add), F.relu, pop("x", F.add)]
    model = Divisible(*layers)
    relu = np.maximum(X, 0)
    np.testing.assert_array_equal(model(X).array, np.maximum(relu + X, 0) + X)
    assert model.skips == (Skip("x", 0, 2), Skip("x", 0, 4))
    h, handed_over = model.divide(0, 3).run(X, {})
    assert handed_over.keys() == {"x"}
    y, left = model.divide(3, 5).run(h, handed_over)
    assert not left
    np.testing.assert_array_equal(y.array, model(X).array)


def test_a_user_that_changes_an_array_in_place_changes_no_other_one():
    layers = [stash("x"), abs, pop("x", lambda y, x: y + doubled(x)), pop("x", np.add)]
    model = Divisible(*layers)
    np.testing.assert_array_equal(model(X.copy()), abs(X) + 3 * X)


WRONG = {
    "stashed twice": (
        [stash("a"), stash("a"), pop("a")],
        r"layer 1: stash\('a'\) is there",
    ),
    "never stashed": ([F.relu, pop("a")], r"layer 1: pop\('a'\) takes what no layer"),
    "never popped": ([stash("a"), F.relu], r"layer 0: stash\('a'\) is never popped"),
    "into an earlier layer": (
        [pop("a"), F.relu, stash("a")],
        r"layer 2: stash\('a'\) is a skip into the earlier layer 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ends_are_refused_when_the_model_is_divided(name):
    layers, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        Divisible(*layers).divide(0, 1)


def test_the_serial_model_notices_what_is_left():
    with pytest.raises(RuntimeError, match=r"stash\('a'\) of Divisible was not popped"):
        Divisible(stash("a"), F.relu)(X)
    with pytest.raises(ValueError, match=r"stash\('a'\) is there a second time"):
        Divisible(stash("a"), stash("a"), pop("a", F.add))(X)


@pytest.mark.parametrize("name", ["", "a b", "a>b", "a.b"])
def test_names_must_be_readable_in_a_schedule(name):
    for end in (stash, pop):
        with pytest.raises(ValueError, match="a skip's name"):
            end(name)


def test_what_is_no_name_or_function_is_refused():
    with pytest.raises(TypeError, match="text, not 3"):
        stash(3)
    with pytest.raises(TypeError, match="join must be a function, not 1"):
        pop("a", 1)


def test_the_ends_are_no_functions_by_themselves():
    for end in (stash("a"), pop("a")):
        with pytest.raises(RuntimeError, match="as a layer of a Divisible"):
            end(X)
