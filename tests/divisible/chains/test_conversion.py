"""Chains taken apart: the layers compute what the chain computes, or it is refused."""

import threading
from concurrent.futures import ThreadPoolExecutor

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible, deferred_init, from_chain
from tests.support.examples import examples

X = np.random.RandomState(0).normal(size=(3, 6)).astype(np.float32)


class Written(chainer.Chain):
    """A chain whose forward is given, of links of six inputs and outputs."""

    def __init__(self, forward, **links):
        super().__init__()
        with self.init_scope():
            for name, link in (links or {"a": L.Linear(6, 6)}).items():
                setattr(self, name, link)
        self._written = forward

    def forward(self, *x):
        return self._written(self, *x)


def apart(model, x, cuts):
    """Passes x through the stages of a model, one by one."""
    skipped = {}
    bounds = [0, *cuts, len(model)]
    for start, end in zip(bounds, bounds[1:]):
        x, skipped = model.divide(start, end).run(x, skipped)
    assert not skipped
    return x


# A step is an operation and the earlier values that it reads, counted from the last.
OPERATIONS = ["linear", "norm", "shared", "relu", "dropout", "reshape", "add", "concat"]
STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 3)),
    min_size=1,
    max_size=9,
)


class Random(chainer.Chain):
    """A chain that reads any of the values computed so far."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps
        with self.init_scope():
            self.shared = L.Linear(6, 6)
            self.last = L.Linear(6, 2)
            for i, (operation, *_) in enumerate(steps):
                if operation == "linear":
                    setattr(self, f"linear{i}", L.Linear(6, 6))
                if operation == "norm":
                    setattr(self, f"norm{i}", L.BatchNormalization(6))

    def forward(self, x):
        values = [x]
        for i, (operation, first, second) in enumerate(self._steps):
            a, b = (values[-1 - n % len(values)] for n in (first, second))
            values.append(self._compute(i, operation, a, b))
        # Each is used, so that each link has gradients.
        return self.last(sum(values[1:], self.shared(values[-1])))

    def _compute(self, i, operation, a, b):
        if operation in ("linear", "norm"):
            return self[f"{operation}{i}"](a)
        return {
            "shared": lambda: self.shared(a),
            "relu": lambda: F.relu(a),
            "dropout": lambda: F.dropout(a, 0.3),
            "reshape": lambda: F.reshape(F.reshape(a, (len(a), 2, 3)), (len(a), -1)),
            "add": lambda: a + b,
            "concat": lambda: F.concat([a, b])[:, 3:9],
        }[operation]()


@given(STEPS, st.data())
@examples(60, deadline=None)
def test_a_random_chain_taken_apart_computes_the_same(steps, data):
    chain = Random(steps)
    model = from_chain(chain, X)
    assert {id(p) for p in model.params()} == {id(p) for p in chain.params()}
    theirs = {path: id(param) for path, param in chain.namedparams()}
    for path, param in model.namedparams():
        assert theirs[model.chain_names.in_chain(path)] == id(param)
        assert model.chain_names.in_layers(model.chain_names.in_chain(path)) == path
    positions = st.integers(1, len(model) - 1)
    cuts = sorted(data.draw(st.sets(positions, max_size=3))) if len(model) > 1 else []
    # Another number of samples than before, as of a microbatch.
    x = np.random.RandomState(1).normal(size=(5, 6)).astype(np.float32)
    for train in (False, True):
        with chainer.using_config("train", train):
            np.random.seed(3)
            expected = chain(x).array
            np.random.seed(3)
            actual = apart(model, x, cuts).array
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


class Branches(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(None, 4, 3, pad=1)
            self.left = L.Convolution2D(4, 3, 1)
            self.right = L.Convolution2D(4, 5, 3, pad=1)
            self.head = L.Linear(None, 2)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.stem(x)), 2)
        h = F.concat([F.tanh(self.left(h)), self.right(h)])
        return self.head(F.dropout(F.reshape(h, (len(h), -1))))


IMAGES = np.random.RandomState(2).rand(4, 1, 8, 8).astype(np.float32)


def test_two_branches_become_a_line():
    chain = Branches()
    model = from_chain(chain, IMAGES)
    assert [str(layer) for layer in model if not isinstance(layer, chainer.Link)][
        2:
    ] == [
        "stash('maxpoolingnd')",
        *[str(F.tanh)],
        "stash('tanh')",
        "pop('maxpoolingnd', Take(1))",
        "pop('tanh', Take(1, 0))",
        "Concat(axis=1)",
        "Reshape(shape=(-1, 128))",
        str(model[-2]),
    ]
    assert list(model.chain_names.values()) == ["/stem", "/left", "/right", "/head"]
    assert model[0] is chain.stem


@pytest.mark.parametrize("function", [F.maximum, F.minimum])
def test_of_equal_inputs_the_same_one_learns(function):
    def forward(self, x):
        # The value that is read first was computed first.
        first = self.first(x)
        return function(first, self.second(x))

    links = {name: L.Linear(6, 6, initialW=0.1) for name in ("first", "second")}
    chain, x = Written(forward, **links), np.ones((2, 6), np.float32)
    chain.cleargrads()
    F.sum(chain(x)).backward()
    expected = [link.W.grad.copy() for link in links.values()]
    assert expected[0].any() and not expected[1].any()
    chain.cleargrads()
    F.sum(from_chain(chain, x)(x)).backward()
    for link, gradient in zip(links.values(), expected):
        np.testing.assert_array_equal(link.W.grad, gradient)


def test_the_chain_is_as_it_was():
    def forward(self, x):
        self.seen = x
        return self.a(x)

    chain = Written(forward, a=L.BatchNormalization(6))
    chain(X)
    seen, mean = chain.seen, chain.a.avg_mean.copy()
    chain.cleargrads()
    chain.a.gamma.grad = np.full(6, 5, np.float32)
    np.random.seed(4)
    from_chain(chain, X)
    drawn = np.random.rand()
    np.random.seed(4)
    assert drawn == np.random.rand()
    np.testing.assert_array_equal(chain.a.avg_mean, mean)
    assert chain.seen is seen
    assert (chain.a.gamma.grad == 5).all() and chain.a.beta.grad is None


def test_links_are_sized_as_in_the_first_call_of_the_chain():
    chains = []
    for prepare in (
        lambda chain: chain(IMAGES),
        lambda chain: from_chain(chain, IMAGES),
    ):
        np.random.seed(5)
        chain = Branches()
        with chainer.using_config("train", False):
            prepare(chain)
        chains.append(chain)
    for mine, theirs in zip(*(sorted(chain.namedparams()) for chain in chains)):
        assert mine[0] == theirs[0]
        np.testing.assert_array_equal(mine[1].array, theirs[1].array)


def test_the_layers_of_a_sequential_are_taken_as_they_are():
    def double(x):
        return x * 2

    link = L.Linear(6, 6)
    chain = chainer.Sequential(link, F.relu, double, link, L.Linear(6, 2))
    model = from_chain(chain, X)
    assert list(model) == list(chain)
    assert model.chain_names == {0: "/0", 4: "/1"}


def test_depth_opens_children():
    def forward(self, x):
        return self.tail(self.body(x))

    def build():
        body = chainer.Sequential(L.Linear(6, 6), F.relu, L.Linear(6, 6))
        return Written(forward, body=body, tail=L.Linear(6, 2))

    assert list(from_chain(build(), X).chain_names.values()) == ["/body", "/tail"]
    model = from_chain(build(), X, depth=2)
    assert list(model.chain_names.values()) == ["/body/0", "/body/1", "/tail"]
    assert len(model) == 4


def test_several_inputs():
    def forward(self, words, x):
        return self.b(x) + F.sum(self.a(words), axis=1)

    chain = Written(forward, a=L.EmbedID(9, 6), b=L.Linear(6, 6))
    words = np.arange(6, dtype=np.int32).reshape(3, 2)
    model = from_chain(chain, (words, X))
    np.testing.assert_allclose(model(words, X).array, chain(words, X).array, rtol=1e-5)


def test_another_forward():
    class Classifier(chainer.Chain):
        def __init__(self):
            super().__init__(a=L.Linear(6, 6), b=L.Linear(6, 2))

        def forward(self, x, t):
            return F.softmax_cross_entropy(self.predict(x), t)

        def predict(self, x):
            return self.b(F.sigmoid(self.a(x)))

    chain = Classifier()
    model = from_chain(chain, X, forward=chain.predict)
    assert list(model) == [chain.a, F.sigmoid, chain.b]
    with pytest.raises(ValueError, match="'t'. It is called .* forward= may name"):
        from_chain(chain, X)


def test_what_a_link_returns_in_parts():
    class Halves(chainer.Chain):
        def __init__(self):
            super().__init__(a=L.Linear(6, 6))

        def forward(self, x):
            return F.split_axis(self.a(x), 2, axis=1)

    def forward(self, x):
        first, second = self.a(x)
        return F.concat([self.b(second), first])

    model = from_chain(Written(forward, a=Halves(), b=L.Linear(3, 6)), X)
    assert list(model.chain_names.values()) == ["/a", "/b"]


def test_a_copy_and_a_stage_keep_the_names():
    model = from_chain(Branches(), IMAGES)
    for other in (model.copy("copy"), model.divide(0, 3)):
        assert other.chain_names.in_chain("/0/W") == "/stem/W"


def no_backprop(self, x):
    with chainer.no_backprop_mode():
        h = self.a(x)
    return self.b(h)


def in_test_mode(self, x):
    with chainer.using_config("train", False):
        return self.a(x)


def unchained(self, x):
    h = self.a(x)
    y = self.b(h)
    h.unchain()
    return y


def train_only(self, x):
    h = self.a(x)
    return h * 2 if chainer.config.train else h


def by_samples(self, x):
    h = self.a(x)
    return F.relu(h) if len(x) > 3 else F.tanh(h)


def cut(self, x):
    h = self.a(x) * 2
    h.unchain_backward()
    return self.b(h)


def test_the_line_of_a_flag_is_named():
    def flagged(self, x):
        h = F.dropout(self.a(x), 0.5)
        if chainer.config.train:
            h = F.sigmoid(h)
        return self.b(h)

    with pytest.raises(ValueError) as caught:
        from_chain(Written(flagged, a=L.Linear(6, 6), b=L.Linear(6, 2)), X)
    assert "with chainer.config.train = False" in str(caught.value)
    assert str(caught.value).endswith("flagged: h = F.sigmoid(h)")


def in_halves(self, x):
    h = self.a(x)
    return F.concat([h[: len(x) // 2] * 2, h[len(x) // 2 :]], axis=0)


TWO = ("a", "b")
REFUSED = {
    "/b (Linear) reads an array of shape (3, 6) that is neither": (
        TWO,
        lambda self, x: self.b(self.a(x).array.view(np.ndarray) * 2),
    ),
    "a minibatch of shape (7, 6), which has more samples: forward raised Inval": (
        "a",
        lambda self, x: self.a(x) + np.ones((3, 6), np.float32),
    ),
    "reads the parameter /a/W outside of a call": (
        "a",
        lambda self, x: F.linear(x, self.a.W, self.a.b),
    ),
    "what /b (Linear) returns is not used": (
        TWO,
        lambda self, x: (self.b(x), self.a(x))[1],
    ),
    "the parameter /b/W belongs to no link that forward calls": (
        TWO,
        lambda self, x: self.a(x),
    ),
    "forward returns a tuple": ("a", lambda self, x: (self.a(x), x)),
    "/a (Linear) is called with n_batch_axes=2": (
        "a",
        lambda self, x: self.a(x[None], n_batch_axes=2)[0],
    ),
    "/a (Linear) is called with a list": ("a", lambda self, x: self.a([x])),
    "/a (Linear) is called in no_backprop_mode()": (TWO, no_backprop),
    "/a (Linear) is called with chainer.config.train = False": ("a", in_test_mode),
    "is called with value = 3 for one minibatch, and 7": (
        "a",
        lambda self, x: self.a(x) * len(x),
    ),
    "makes the shape (3, 3) of one minibatch, and (7, 7)": (
        "a",
        lambda self, x: F.reshape(
            F.matmul(self.a(x), x, transb=True)[None], (len(x),) * 2
        ),
    ),
    "goes another way for another minibatch: it calls": ("a", by_samples),
    "goes another way for another minibatch: of ": (
        "a",
        lambda self, x: sum(F.separate(self.a(x))),
    ),
    "does not belong to the chain": ("a", lambda self, x: L.Linear(6, 6)(self.a(x))),
    "forward raised TypeError": ("a", lambda self, x, t: self.a(x)),
    "forward raised AttributeError": (
        "a",
        lambda self, x: self.a(x.as_float32()),
    ),
    "the gradient of /a/": (TWO, unchained),
    "what the function MulConstant returns is cut from the graph": (TWO, cut),
    "the function GetItem is called with slices = ": ("a", in_halves),
    "with chainer.config.train = False and inputs of shape (3, 6) is not the chain's": (
        "a",
        train_only,
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_line_is_refused_with_the_reason(reason):
    names, forward = REFUSED[reason]
    chain = Written(forward, **{name: L.Linear(6, 6) for name in names})
    with pytest.raises(ValueError) as caught:
        from_chain(chain, X)
    assert str(caught.value).startswith("from_chain(Written): ")
    assert reason in str(caught.value)


WORDS = np.random.RandomState(3).randint(0, 9, (4, 5)).astype(np.int32)
MAPS = np.random.RandomState(4).rand(3, 6, 8, 8).astype(np.float32)

# What reads a size, and minibatches of other sizes than the example.
FOLLOWS = {
    "a mean": (
        lambda self, x: self.a(F.mean(self.words(x), axis=1)),
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a factor": (
        lambda self, x: self.a(F.sum(self.words(x), axis=1)) * x.shape[1],
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a reshape that joins samples and words": (
        lambda self, x: F.reshape(self.words(x), (-1, 6)),
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a reshape with three sizes": (
        lambda self, x: F.reshape(self.words(x), (len(x), x.shape[1], 2, 3)),
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a reshape with a rest": (
        lambda self, x: F.sum(F.reshape(self.words(x), (len(x), -1)), axis=1),
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a broadcast": (
        lambda self, x: F.broadcast_to(
            F.sum(self.words(x), axis=2, keepdims=True), (*x.shape, 3)
        ),
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a broadcast to the size of the chain's input": (
        lambda self, x: F.broadcast_to(
            F.sum(self.words(x), axis=1)[:, None], (*x.shape, 6)
        ),
        WORDS[:3],
        [(4, 9), (3, 2)],
    ),
    "a reshape with two sizes of the chain's input": (
        lambda self, x: F.sum(
            F.reshape(self.words(F.reshape(x, (-1,))), (*x.shape, 6)), axis=1
        ),
        WORDS,
        [(4, 9), (3, 2)],
    ),
    "a pooling over whole images": (
        lambda self, x: F.reshape(
            F.average_pooling_2d(self.conv(x), x.shape[2:]), (len(x), 6)
        ),
        MAPS,
        [(3, 6, 5, 7), (2, 6, 12, 4)],
    ),
    "a maximum over whole images": (
        lambda self, x: F.max_pooling_2d(self.conv(x), x.shape[2:])[:, :, 0, 0],
        MAPS,
        [(3, 6, 5, 7), (2, 6, 12, 4)],
    ),
    "images that are halved and joined": (
        lambda self, x: F.concat(
            [
                x,
                F.unpooling_2d(F.max_pooling_2d(self.conv(x), 2), 2, cover_all=False),
            ]
        ),
        MAPS,
        [(3, 6, 4, 4), (2, 6, 12, 4)],
    ),
    "square images that are halved and joined, then averaged": (
        lambda self, x: F.average_pooling_2d(
            F.unpooling_2d(F.max_pooling_2d(self.conv(x), 2), 2, cover_all=False) + x,
            x.shape[2:],
        ),
        MAPS,
        [(3, 6, 4, 4), (2, 6, 12, 4)],
    ),
}


def sized_chain(forward):
    """A chain of those links for words, features and images that forward reads."""
    links = {
        "a": L.Linear(6, 6),
        "words": L.EmbedID(9, 6),
        "conv": L.Convolution2D(6, 6, 3, pad=1),
    }
    read = forward.__code__.co_names
    return Written(forward, **{name: links[name] for name in links if name in read})


@pytest.mark.parametrize("name", FOLLOWS)
def test_what_reads_the_size_of_its_input_follows_it(name):
    forward, example, shapes = FOLLOWS[name]
    chain = sized_chain(forward)
    model = from_chain(chain, example)
    for shape in shapes:
        x = np.resize(example, shape)
        y, expected = model(x).array, chain(x).array
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def each_step(self, x):
    y = 0
    for h in F.separate(self.words(x), axis=1):
        y = y + self.a(h)
    return y


BAKED = {
    "MulConstant behind /words (EmbedID) is called with value = 0.2 for a minibatch": (
        lambda self, x: self.a(F.sum(self.words(x), axis=1) / x.shape[1]),
        WORDS,
    ),
    "GetItem behind /words (EmbedID) is called with slices": (
        lambda self, x: self.a(self.words(x)[:, x.shape[1] - 1]),
        WORDS,
    ),
    "goes another way for a minibatch of shape (4, 6) than for one of shape (4, 5)": (
        each_step,
        WORDS,
    ),
    "is called with value = 0.015625 for a minibatch of shape (3, 6, 8, 8), and 0.01": (
        lambda self, x: F.sum(self.conv(x), axis=(2, 3)) / (x.shape[2] * x.shape[3]),
        MAPS,
    ),
    "AveragePooling2D behind /conv (Convolution2D) is called with kh = 4 for": (
        lambda self, x: F.average_pooling_2d(
            self.conv(x), (x.shape[2] // 2, x.shape[3] // 2)
        ),
        MAPS,
    ),
    "is called with out_H = 16 for a minibatch of shape (3, 6, 8, 8), and 18 for one": (
        lambda self, x: F.resize_images(self.conv(x), (2 * x.shape[2], 2 * x.shape[3])),
        MAPS,
    ),
}


@pytest.mark.parametrize("reason", BAKED)
def test_what_would_keep_the_size_of_the_example_is_refused(reason):
    forward, example = BAKED[reason]
    with pytest.raises(ValueError) as caught:
        from_chain(sized_chain(forward), example)
    assert reason in str(caught.value)
    assert "into the forward of a link of its own" in str(caught.value)


def test_inputs_of_one_length_grow_together():
    def weighted(self, words, weights):
        h = self.a(words) * F.broadcast_to(weights[:, :, None], (*words.shape, 6))
        return F.sum(h, axis=1)

    def divided(self, words, weights):
        return weighted(self, words, weights) / words.shape[1]

    example = WORDS, np.random.RandomState(6).rand(4, 5).astype(np.float32)
    longer = np.resize(WORDS, (2, 9)), np.resize(example[1], (2, 9))
    links = {"a": L.EmbedID(9, 6)}
    chain = Written(weighted, **links)
    model = from_chain(chain, example)
    np.testing.assert_allclose(model(*longer).array, chain(*longer).array, rtol=1e-6)
    with pytest.raises(ValueError, match=r"0.2 for .* of shape \(4, 5\) and \(4, 5\)"):
        from_chain(Written(divided, **links), example)


def test_a_chain_that_accepts_one_size_keeps_its_constants():
    chain = Written(lambda self, x: self.a(x) / x.shape[1])
    model = from_chain(chain, X)
    np.testing.assert_array_equal(model(X).array, chain(X).array)


def test_values_of_the_chain_itself_are_refused():
    chain = Written(lambda self, x: self.a(x))
    chain.add_persistent("count", 3)
    with pytest.raises(ValueError, match="the persistent value /count belongs to no"):
        from_chain(chain, X)
    chain = Written(lambda self, x: self.a(x) * F.broadcast_to(self.scale, x.shape))
    with chain.init_scope():
        chain.scale = chainer.Parameter(1, 6)
    with pytest.raises(ValueError, match="reads the parameter /scale outside"):
        from_chain(chain, X)


def test_a_link_that_is_never_called_may_have_no_size():
    chain = Written(lambda self, x: self.a(x), a=L.Linear(6, 6), b=L.Linear(None, 6))
    with pytest.raises(ValueError, match="the parameter /b/W belongs to no link"):
        from_chain(chain, X)


def test_a_chain_that_is_not_made_is_refused():
    with deferred_init():
        chain = Written(lambda self, x: self.a(x))
    with pytest.raises(ValueError, match="forward raised NotMadeError"):
        from_chain(chain, X)


@pytest.mark.parametrize(
    "chain, x, error, message",
    [
        (Divisible(F.relu), X, TypeError, "it is a Divisible already"),
        (F.relu, X, TypeError, "neither a Chain nor a ChainList"),
        (chainer.Sequential(F.relu), [1.0], ValueError, "x must be an array"),
        (chainer.Sequential(F.relu), X[:0], ValueError, "x must be an array"),
    ],
)
def test_bad_arguments_are_refused(chain, x, error, message):
    with pytest.raises(error, match=message):
        from_chain(chain, x)


def test_depth_must_be_positive():
    with pytest.raises(ValueError, match="depth must be 1 at least, not 0"):
        from_chain(chainer.Sequential(F.relu), X, depth=0)


def test_calls_of_threads_run_one_after_the_other():
    """A call replaces functions that all threads have in common."""
    first_records, first_ends, second_records = (threading.Event() for _ in range(3))
    # Long enough for the second, did it not wait.
    pauses = iter([0.2])

    def first(self, x):
        if type(x) is not np.ndarray:
            first_records.set()
            second_records.wait(next(pauses, 0))
        return self.a(x)

    def second(self, x):
        if type(x) is not np.ndarray:
            second_records.set()
            assert first_ends.wait(60)
        mask = np.zeros(x.shape, np.float32)
        mask[x > 0] = 1
        return self.a(x * mask)

    zeros = np.zeros
    with ThreadPoolExecutor() as threads:
        one = threads.submit(from_chain, Written(first), X)
        one.add_done_callback(lambda _: first_ends.set())
        assert first_records.wait(60)
        other = threads.submit(from_chain, Written(second), X)
        assert len(one.result()) == 1 and len(other.result()) > 3
    assert np.zeros is zeros
