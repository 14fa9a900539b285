"""Names that the standard library removed: each does what Python 3.7 says of it."""

import base64
import collections
import configparser
import inspect
import io
import math
import subprocess
import sys
import threading
import time
import unittest
import warnings
import xml.etree.ElementTree

import pytest

from chainer_compat import _python_aliases


def entries():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _python_aliases.catalogue()


CATALOGUE = {(place, name): value for place, name, value in entries()}


def each(place, name):
    """Returns what the catalogue has under a name, and what this Python has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [CATALOGUE[place, name], *filter(None, [getattr(place, name, None)])]


def spread(a, b=1, *rest, **named):
    pass


def annotated(a: int):
    pass


def by_keyword(*, a):
    pass


def test_abstract_classes():
    # All that "from collections import ..." had in Python 3.7.
    names = set(_python_aliases._ABSTRACT.split())
    assert names - {"ByteString"} == set(collections.abc.__all__) - {
        *("ByteString", "Buffer")
    }
    for name, example in (("Iterable", []), ("Mapping", {}), ("Callable", len)):
        assert all(isinstance(example, kind) for kind in each(collections, name))


def test_arguments_of_a_function():
    for getargspec in each(inspect, "getargspec"):
        assert getargspec(spread) == (["a", "b"], "rest", "named", (1,))
        assert getargspec(spread).keywords == "named"
        for function in (annotated, by_keyword):
            with pytest.raises(ValueError, match="annotations"):
                getargspec(function)


def test_arguments_of_links_and_of_chainers_functions():
    import chainer
    import chainer.functions as F
    import chainer.links as L

    class Block(chainer.Chain):
        def __call__(self, x, test=False):
            return x

    getargspec = CATALOGUE[inspect, "getargspec"]
    assert getargspec(L.Linear(2, 1)).args == ["self", "x", "n_batch_axes"]
    assert getargspec(Block()) == (["self", "x", "test"], None, None, (False,))
    assert getargspec(F.relu).args == ["x"]


def test_common_divisors():
    import fractions

    for gcd in each(fractions, "gcd"):
        values = [gcd(12, 18), gcd(12, -18), gcd(-12, 18), gcd(-4, 0), gcd(0, 0)]
        assert values == [6, -6, 6, -4, 0]


def test_processor_time():
    for clock in each(time, "clock"):
        start = clock()
        math.factorial(5000)
        assert 0 < clock() - start < 60


def test_base64():
    for encode, decode in zip(
        each(base64, "encodestring"), each(base64, "decodestring")
    ):
        assert (encode(b"chain"), decode(b"Y2hhaW4=\n")) == (b"Y2hhaW4=\n", b"chain")


def test_threads():
    thread = threading.Thread(target=int)
    for is_alive in each(threading.Thread, "isAlive"):
        assert is_alive(thread) is False
        assert is_alive(threading.current_thread()) is True


def test_configurations():
    for make, read in zip(
        each(configparser, "SafeConfigParser"),
        each(configparser.RawConfigParser, "readfp"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parser = make()
            read(parser, io.StringIO("[a]\nb = 1\nc = %(b)s2"), "settings")
        assert parser.get("a", "c") == "12"


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("assert_", (1,), (0,)),
        ("assertEquals", (1, 1), (1, 2)),
        ("assertNotEquals", (1, 2), (1, 1)),
        ("assertAlmostEquals", (1, 1 + 1e-9), (1, 2)),
        ("assertNotAlmostEquals", (1, 2), (1, 1 + 1e-9)),
        ("assertRegexpMatches", ("ab", "b"), ("ab", "c")),
        ("assertNotRegexpMatches", ("ab", "c"), ("ab", "b")),
        ("assertRaisesRegexp", (ValueError, "x", int, "x"), (ValueError, "y", int, 1)),
    ],
)
def test_assertions(name, good, bad):
    case = unittest.TestCase()
    for check in each(unittest.TestCase, name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(case, *good)
            with pytest.raises(AssertionError):
                check(case, *bad)


def test_xml():
    assert CATALOGUE[xml.etree, "cElementTree"] is xml.etree.ElementTree


ENABLE = """
import base64, collections, configparser, fractions, inspect, threading, time, unittest
import xml.etree
places = (base64, collections, configparser, configparser.RawConfigParser, fractions)
places += (inspect, threading.Thread, time, unittest.TestCase, xml.etree)
before = [dict(vars(place)) for place in places]
import chainer_compat
assert [dict(vars(place)) for place in places] == before
added = chainer_compat.enable_python_aliases()
assert chainer_compat.enable_python_aliases() == []
for place, old in zip(places, before):
    assert [name for name in old if vars(place)[name] is not old[name]] == [], place
import warnings
warnings.simplefilter("ignore")
from xml.etree.cElementTree import fromstring
from collections import Iterable, Mapping
assert isinstance({}, Mapping) and time.clock() and inspect.getargspec(len)
assert not set(added) & {f"{p.__name__}.{n}" for p, o in zip(places, before) for n in o}
assert "time.clock" in added and "collections.OrderedDict" not in added
"""


def test_enabling_adds_and_overrides_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENABLE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
