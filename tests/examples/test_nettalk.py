"""NETtalk's samples: alignments, syllables, codes of sounds; a network learns them."""

import doctest
import itertools
import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.nettalk import data
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

ALIGNED = {
    "phone": "F - OW1 N -",
    "knight": "- N AY1 - - T",
    "box": "B AA1 K+S",
    "exam": "IH0 G+Z AE1 M",
    "sexual": "S EH1 K+SH UW0 AH0 L",
    "nazi": "N AA1 T+S IY0",
    "one": "W+AH1 N -",
    "cute": "K Y+UW1 T -",
    "regular": "R EH1 G Y+AH0 L - ER0",
    "bottle": "B AA1 T - AH0+L -",
    "prism": "P R IH1 Z AH0+M",
    "through": "TH - R - UW1 - -",
    "thought": "TH - AO1 - - - T",
    "laugh": "L AE1 - F -",
    "high": "HH AY1 - -",
    "psychology": "- S AY0 K - AA1 L AH0 JH IY0",
    "physics": "F - IH1 Z IH0 K S",
    "church": "CH - - ER1 CH -",
    "machine": "M AH0 SH - IY1 N -",
    "school": "S K - UW1 - L",
    "queen": "K W IY1 - N",
    "sing": "S IH1 NG -",
    "finger": "F IH1 NG G - ER0",
    "debt": "D EH1 - T",
    "island": "AY1 - L AH0 N D",
    "castle": "K AE1 S - AH0+L -",
    "sword": "S - AO1 R D",
    "lamb": "L AE1 M -",
    "hymn": "HH IH1 M -",
    "ghost": "G - OW1 S T",
    "receipt": "R IH0 S - IY1 - T",
    "white": "W - AY1 T -",
    "it's": "IH1 T - S",
    "written": "- R IH1 T - AH0 N",
}

# Words in an alphabet of two letters, and pronunciations of three phonemes of which two
# also come as a pair.
WORDS = st.text("ax", min_size=1, max_size=5)
PRONUNCIATIONS = st.lists(st.sampled_from(["K", "S1", "AA0"]), min_size=1, max_size=6)


def aligned(word):
    return data.align(word, data.pronunciations()[word], data.learn_scores())


def shown(sounds):
    return " ".join(sound.replace(" ", "+") or "-" for sound in sounds)


def test_what_the_docstrings_show():
    failed, attempted = doctest.testmod(data)
    assert attempted >= 5 and failed == 0


def test_what_the_readme_shows():
    readme = (ROOT / "examples" / "nettalk" / "README.md").read_text()
    rows = re.findall(r"^\| (\w+) \| `(.*)` \| `(.*)` \|$", readme, re.MULTILINE)
    assert len(rows) == 8
    for word, sounds, codes in rows:
        assert shown(aligned(word)) == sounds
        assert data.syllables(aligned(word)) == codes


@pytest.mark.parametrize("word", ALIGNED)
def test_words_are_aligned_as_they_are_spoken(word):
    assert shown(aligned(word)) == ALIGNED[word]


@pytest.mark.parametrize("word", ["ibm", "mcdaniels", "q", "zhivago"])
def test_words_not_spelled_by_their_letters_have_no_alignment(word):
    assert aligned(word) is None


def test_alignments_leave_no_phoneme_out():
    entries = list(data.pronunciations().items())[::250]
    lost = 0
    for word, phonemes in entries:
        sounds = aligned(word)
        if sounds is None:
            lost += 1
            continue
        assert len(sounds) == len(word)
        assert " ".join(filter(None, sounds)).split() == list(phonemes)
    assert 0 < lost < 0.02 * len(entries)


def all_alignments(word, phonemes):
    """Yields all ways to give each letter none, one, or two of the phonemes."""
    for numbers in itertools.product(range(3), repeat=len(word)):
        if sum(numbers) == len(phonemes):
            ends = np.cumsum(numbers)
            sounds = [" ".join(phonemes[e - n : e]) for e, n in zip(ends, numbers)]
            units = [data._UNIT.get(data._without_stress(sound)) for sound in sounds]
            if None not in units:
                yield sounds, units


def random_probability(seed):
    """Returns a probability of each sound of each letter, in the form of the module."""
    probability = np.random.RandomState(seed).uniform(
        0.1, 1, (len(data.SYMBOLS) + 1, len(data._UNITS) + 1)
    )
    probability[:, -1] = 0
    probability[-1] = 0
    probability[-1, 0] = 1
    return probability


@given(
    st.lists(st.tuples(WORDS, PRONUNCIATIONS), min_size=1, max_size=3), st.integers(0)
)
def test_counts_are_those_of_all_alignments(entries, seed):
    probability = random_probability(seed % 1000)
    expected = np.zeros_like(probability)
    for word, phonemes in entries:
        rows = [data.SYMBOLS.index(letter) for letter in word]
        ways = [units for _, units in all_alignments(word, phonemes)]
        weights = [probability[rows, units].prod() for units in ways]
        for weight, units in zip(weights, ways):
            np.add.at(expected, (rows, units), weight / sum(weights))
    counts = data._expected_counts(data._Words.of(entries), probability)
    # What follows a short word counts in a row of its own.
    np.testing.assert_allclose(counts[:-1], expected[:-1], rtol=1e-9, atol=1e-12)


@given(WORDS, PRONUNCIATIONS, st.integers(0, 999))
def test_the_alignment_is_the_most_likely_one(word, phonemes, seed):
    scores = np.log(random_probability(seed)[:-1, :-1])
    rows = [data.SYMBOLS.index(letter) for letter in word]
    totals = {
        tuple(sounds): scores[rows, units].sum()
        for sounds, units in all_alignments(word, phonemes)
    }
    sounds = data.align(word, phonemes, scores)
    if totals:
        # The same letter twice has several that are equally likely.
        assert totals[tuple(sounds)] == pytest.approx(max(totals.values()))
    else:
        assert sounds is None


def test_of_equally_likely_alignments_earlier_letters_sound():
    scores = np.zeros((len(data.SYMBOLS), len(data._UNITS)))
    assert data.align("aaaa", ["K", "S", "T"], scores) == ["K S", "T", "", ""]


@pytest.mark.parametrize(
    "word, codes",
    [
        ("knight", ">>1<<<"),
        ("through", ">>>>1<<"),
        ("debtor", ">1<>>0"),  # a silent letter is where the one before it is
        ("finger", ">1<>>0"),
        ("singer", ">1<<<0"),  # no syllable begins with ng
        ("explain", "0<>>1<<"),
        ("abstract", "0<>>>1<<"),
        ("people", ">1<>0<"),
        ("science", ">>10<<<"),
        ("sexual", ">1<00<"),
        ("one", "1<<"),
    ],
)
def test_syllables_and_stress(word, codes):
    assert data.syllables(aligned(word)) == codes


VOICELESS_AND_VOICED = ("P B", "T D", "K G", "F V", "TH DH", "S Z", "SH ZH", "CH JH")


def test_no_two_sounds_have_the_same_features():
    codes = {sound: frozenset(names.split()) for sound, names in data.SOUNDS.items()}
    same = [{a, b} for a, b in itertools.combinations(codes, 2) if codes[a] == codes[b]]
    # Long, short and reduced: NETtalk has one phoneme for them.
    assert set().union(*same) == {"Y UW", "Y UH", "Y AH"}
    assert set().union(*codes.values()) < data._OUTPUT.keys()
    # Consonants are voiced or not in pairs.
    for voiceless, voiced in map(str.split, VOICELESS_AND_VOICED):
        assert codes[voiced] == codes[voiceless] | {"voiced"}


@pytest.mark.parametrize(
    "sound, stress, features",
    [
        ("P", ">", "labial=front1 stop right"),
        ("AH0", "0", "palatal=central2 medium weak"),
        ("AH1", "1", "alveolar=central1 low strong weak"),
        ("IY2", "2", "labial=front1 tensed high strong"),
        ("AH0 L", "0", "alveolar=central1 liquid voiced weak"),
        ("K S", "<", "dental=front2 alveolar=central1 affricate left"),
        ("", "<", "silent elide left"),
        (" ", "#", "elide pause right left boundary"),
        (".", "#", "pause full_stop right left boundary"),
    ],
)
def test_features_are_those_of_appendix_a(sound, stress, features):
    (numbers,) = data.target(sound, stress).nonzero()
    assert " ".join(data.FEATURES[number] for number in numbers) == features


def test_samples_are_windows_of_seven_letters():
    x, t = data.nettalk()
    assert x.shape == (1024, 203) and t.shape == (1024, 26)
    assert x.dtype == t.dtype == np.float32
    windows = x.reshape(1024, 7, 29)
    assert set(np.unique(x)) == set(np.unique(t)) == {0, 1}
    assert (windows.sum(axis=2) == 1).all()
    # They slide by one letter, from before the first word on.
    np.testing.assert_array_equal(windows[1:, :-1], windows[:-1, 1:])
    text = "".join(data.SYMBOLS[k] for k in windows[:, 3].argmax(axis=1))
    assert data.SYMBOLS[windows[0, 2].argmax()] == " " != text[0]
    sentence = text.split(". ")[0]
    words = sentence.split(" ")
    assert len(words) == 8 and all(word in data.pronunciations() for word in words)
    sounds = [data.target(sound, "#") for sound in aligned(words[0])]
    np.testing.assert_array_equal(t[: len(words[0]), :21], np.array(sounds)[:, :21])
    # Nearly all letters are there, and all outputs.
    assert windows.any(axis=(0, 1)).sum() > 26 and t.any(axis=0).all()


def test_samples_are_the_same_for_a_seed():
    x, t = data.nettalk(200, seed=3)
    again = data.nettalk(200, seed=3)
    np.testing.assert_array_equal(x, again[0])
    np.testing.assert_array_equal(t, again[1])
    first = data.nettalk(60, seed=3)
    np.testing.assert_array_equal(x[:60], first[0])
    np.testing.assert_array_equal(t[:60], first[1])
    assert (data.nettalk(200, seed=4)[0] != x).any()


@pytest.mark.parametrize("n_samples", [0, -1])
def test_no_samples_are_refused(n_samples):
    with pytest.raises(ValueError, match=f"1 at least, not {n_samples}"):
        data.nettalk(n_samples)


def test_a_network_learns_them():
    x, t = data.nettalk(512)
    np.random.seed(0)
    model = chainer.Sequential(
        *(L.Linear(203, 80, nobias=True), F.sigmoid),
        *(L.Linear(80, 26, nobias=True), F.sigmoid),
    )
    optimizer = chainer.optimizers.Adam(0.01).setup(model)
    losses = []
    for _ in range(200):
        h = model(x)
        loss = F.sum((h - t) ** 2) / (2 * len(x))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    assert losses[-1] < 0.2 < 2 < losses[0]
    right = ((h.array > 0.5) == (t > 0.5)).all(axis=1).mean()
    assert right > 0.7


def errors(n_ranks, *options):
    """What the script says of its errors, and all that it says."""
    script = ROOT / "examples" / "nettalk" / "train.py"
    argv = [script, "--report", "5", *options]
    result = mpiexec(n_ranks, argv, has_project=True)
    assert result.returncode == 0, result.stdout
    lines = re.findall(r"iteration +(\d+): error (\S+)", result.stdout)
    return [(int(i), float(error)) for i, error in lines], result.stdout


def test_the_script_learns_the_same_on_ranks_of_unequal_ability():
    options = "--samples", "200", "--threshold", "1.2"
    alone, output = errors(1, *options)
    assert alone[-1][1] < 1.2 <= alone[-2][1] and "letters have all" in output
    together, output = errors(3, *options, "--abilities", "1,1,2", "--every", "10")
    assert [i for i, _ in together] == [i for i, _ in alone]
    for (_, mine), (_, theirs) in zip(alone, together):
        assert theirs == pytest.approx(mine, abs=2e-3)
    assert "shortest by longest time" in output
