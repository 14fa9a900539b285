"""Ranks of different versions are refused, whatever else they say."""

import pickle
import pickletools

import pytest

from divisible._version import __version__
from pipeline import DisagreementError
from pipeline.start import versions
from pipeline.start.versions import opened, sealed


def test_ranks_of_one_version_understand_each_other():
    assert opened([sealed(word) for word in ("a", (1, None))]) == ["a", (1, None)]
    assert __version__ in sealed("a")[0]


def test_another_version_is_refused_with_both_hosts_and_not_read():
    version, _, words = sealed("a")
    first = version, "node1", words
    other = "divisible 9.9", "node2", b"not a pickle"
    message = "rank 0 on node1 runs .*, and rank 2 on node2 runs divisible 9.9. Install"
    with pytest.raises(DisagreementError, match=message):
        opened([first, first, other])
    with pytest.raises(DisagreementError, match="rank 1 runs a divisible that"):
        opened([first, ("an announcement", None)])
    with pytest.raises(DisagreementError, match="rank 0 runs a divisible that"):
        opened(["an announcement", first])


def test_sources_of_another_checkout_are_another_version(monkeypatch, tmp_path):
    monkeypatch.setattr(versions, "_SPEAKING", (tmp_path,))
    seen = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "a.py").write_text(text)
        versions.version.cache_clear()
        seen.add(versions.version())
    versions.version.cache_clear()
    assert len(seen) == 2


def test_any_version_can_read_which_version_a_rank_has():
    # Names of classes and modules are all that a pickle needs of a version.
    opcodes = {code.name for code, *_ in pickletools.genops(pickle.dumps(sealed(Said)))}
    assert not opcodes & {"GLOBAL", "STACK_GLOBAL"}


class Said:
    """A class of ours, which is within the words."""
