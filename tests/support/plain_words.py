"""Lists sentences to write more plainly: ``python -m tests.support.plain_words``.

Docstrings, comments, messages and pages are checked for these rules:

==========  ==========================================================================
opening     A docstring, an argument, or a sentence of a comment begins without a noun
            or with a vague verb: ``Of the samples``, ``It ends``, ``Sees to a thing``.
phrase      A text has a phrase that a plainer one could replace: ``ensures that`` says
            more than ``sees to it that``.
sentence    A sentence has more than 34 words; code counts as one word. Messages may
            have longer ones.
==========  ==========================================================================

Literal blocks, commands, doctests, tables and headings are skipped. The rules are a
floor: text that passes can still be unclear.

Files and folders given as arguments are checked; without arguments, those in `CHECKED`.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT

#: Files and folders whose text obeys the rules, relative to the root of the repository.
CHECKED = (
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "chainer_compat",
    "chainer_kernels",
    "data_parallel",
    "divisible",
    "divisible_command.py",
    "docs",
    "examples",
    "heterogeneous",
    "mixed_precision",
    "model_compression",
    "pipeline",
    "setup.py",
    "tests/support/plain_words.py",
    "torch_layers",
)

#: Words in the longest sentence.
LONGEST = 34

_UNNAMED = ("Of", "That", "Those", "It", "What", "Whatever", "Who", "Whoever", "Whose")
_UNNAMED += ("As", "Likewise", "Which", "Where it")
_VAGUE_VERBS = ("Sees", "Lets", "Says", "Minds", "Takes note", "Looks whether")
#: Openings that lack a noun, or name no concrete action, by the kind of a passage.
OPENINGS = {
    "docstring": re.compile(rf"({'|'.join(_UNNAMED + _VAGUE_VERBS)})\b"),
    "argument": re.compile(rf"({'|'.join(_UNNAMED + _VAGUE_VERBS)}|The same)\b"),
    "comment": re.compile(r"(Of|By|That|Those|What|Whose|Who|It|As)\s"),
}
#: Phrases with a plainer equivalent, as regular expressions.
PHRASES = (
    r"sees? to it that",
    r"likewise",
    r"anew",
    r"but for",
    r"(has|have) not[,.;]",
    r"it is none",
    r"(is|are) none of",
    r"is no [a-z]+ (of|that|which)",
    r"become others",
    r"in vain",
    r"of (now|late|whom)",
    r"as much again",
    r"reckon(s|ed|ing)?",
    r"the means? of what",
    r"so many times",
    r"whichever it",
    r"thereby|wherein|hitherto",
    r"by itself alone",
    r"as (it comes|they come)",
)
#: A string of fewer words is no message, but a name, a key or a part of a pattern.
SHORTEST_MESSAGE = 4

_PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})(?!\w)", re.IGNORECASE)
_CODE = re.compile(r"``.*?``|(:\w+)?:\w+:`[^`]*`|`[^`]*`")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[(])")
_ENTRY = re.compile(r"\s{2,}\*{0,2}[\w., `]+(?: \([^)]*\))?: (?=\S)")
_BULLET = re.compile(r"\s*([-*+]|\d+\.) ")
_NO_PROSE = re.compile(r"\s*(>>>|\.\.|[|+$#=~^-])")
# The first line of a block without prose up to an empty line: a doctest, a table.
_NO_PROSE_BELOW = re.compile(r"\s*(>>>|=+( +=+)+$)")
# The first line of a block of commands, or click's mark before such a block.
_COMMANDS = re.compile(r"\s+(mpiexec|python|divisible) |\x08$")


class Passage(NamedTuple):
    """A stretch of text whose sentences belong together.

    Attributes:
        kind: ``'docstring'`` for a docstring's summary, ``'argument'``, ``'comment'``,
            ``'message'`` for a string, or ``'paragraph'`` for other prose.
        line: Number of the first line in the file, from 1.
        text: The words, in one line.
    """

    kind: str
    line: int
    text: str


class Finding(NamedTuple):
    """A place that breaks a rule.

    Attributes:
        line: Number of the passage's first line, from 1.
        rule: ``'opening'``, ``'phrase'`` or ``'sentence'``.
        text: The sentence, with the words in question in front.
    """

    line: int
    rule: str
    text: str


def findings(path: Path) -> Iterator[Finding]:
    """Yields the places of a file that break a rule.

    Args:
        path: A Python module (``.py``), or a page (``.rst``, ``.md``).
    """
    source = path.read_text(encoding="utf-8")
    for kind, line, text in passages(source, path.suffix):
        sentences = _SENTENCE_END.split(_CODE.sub("x", text))
        begins = sentences if kind == "comment" else [text]
        for begin in begins if kind in OPENINGS else []:
            opening = OPENINGS[kind].match(begin)
            if opening:
                yield Finding(line, "opening", f"[{opening[0].strip()}] {begin}")
        for sentence in sentences:
            phrase = _PHRASE.search(sentence)
            if phrase:
                yield Finding(line, "phrase", f"[{phrase[0]}] {sentence}")
            n_words = len(sentence.split())
            if n_words > LONGEST and kind != "message":
                yield Finding(line, "sentence", f"[{n_words} words] {sentence}")


def passages(source: str, suffix: str) -> Iterator[Passage]:
    """Yields the prose of a file.

    Args:
        source: The file's text.
        suffix: Suffix of the file's name, such as ``'.py'``.
    """
    if suffix == ".py":
        yield from _strings(source)
        yield from _comments(source)
    else:
        lines = source.splitlines()
        yield from _paragraphs(_without_code(lines) if suffix == ".md" else lines, 1)


def _strings(source: str) -> Iterator[Passage]:
    """Yields the passages of docstrings, and other strings that may be messages."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node):
            docstring = node.body[0].value
            docstrings.add(docstring)
            lines = ast.get_docstring(node).splitlines()
            summary, *others = _paragraphs(lines, docstring.lineno)
            yield summary._replace(kind="docstring")
            yield from others
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            # `ast.walk` yields a module or function before its docstring.
            if node not in docstrings and len(words) >= SHORTEST_MESSAGE:
                yield Passage("message", node.lineno, " ".join(words))


def _paragraphs(lines: list[str], start: int) -> Iterator[Passage]:
    """Yields paragraphs, list items and arguments of a docstring or a page.

    Args:
        lines: Lines of the text.
        start: Number of the first line.
    """
    kind, first, words = "paragraph", 0, []
    literal = None  # Indentation of the line that a literal block belongs to.
    is_skipped = False
    for number, line in enumerate([*lines, ""], start):
        indentation = len(line) - len(line.lstrip())
        if literal is not None:
            if not line.strip() or indentation > literal:
                continue
            literal = None
        has_text = bool(line.strip())
        begins = _NO_PROSE_BELOW.match(line) or (not words and _COMMANDS.match(line))
        is_skipped = has_text and (is_skipped or bool(begins))
        entry = bullet = None
        if not is_skipped:
            entry, bullet = _ENTRY.match(line), _BULLET.match(line)
        is_prose = has_text and not is_skipped
        is_prose = is_prose and bool(bullet or not _NO_PROSE.match(line))
        if words and (entry or bullet or not is_prose):
            yield Passage(kind, first, " ".join(words))
            words = []
        if is_prose:
            if not words:
                kind, first = "argument" if entry else "paragraph", number
            prefix = entry or bullet
            words += line[prefix.end() if prefix else 0 :].split()
        if line.endswith("::") or re.match(r"\s*\.\. .*::", line):
            literal = indentation
            if words:
                yield Passage(kind, first, " ".join(words))
                words = []


def _without_code(lines: list[str]) -> Iterator[str]:
    """Yields lines of a Markdown page, empty ones in place of code blocks."""
    is_code = False
    for line in lines:
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        yield "" if is_code or is_fence or line.startswith("    ") else line


def _comments(source: str) -> Iterator[Passage]:
    """Yields comments; lines with nothing but a comment, below each other, are one."""
    first, last, words = 0, 0, []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        number, column = token.start
        is_alone = not token.line[:column].strip()
        if words and not (is_alone and number == last + 1):
            yield Passage("comment", first, " ".join(words))
            words = []
        if not words:
            first = number
        # The line after a comment at the end of code begins another comment.
        last = number if is_alone else 0
        words += token.string.lstrip("#: ").split()
    if words:
        yield Passage("comment", first, " ".join(words))


def files(paths: list[Path]) -> Iterator[Path]:
    """Yields the modules and pages among some files and below some folders."""
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.suffix in (".py", ".rst", ".md"))


def main(arguments: list[str]) -> bool:
    """Prints each finding, and the number of findings.

    Args:
        arguments: Names of files and folders; none for `CHECKED`.

    Returns:
        Whether a place breaks a rule.
    """
    n_files = n_findings = 0
    for path in files(
        [Path(name) for name in arguments or map(ROOT.joinpath, CHECKED)]
    ):
        n_files += 1
        for line, rule, text in findings(path):
            n_findings += 1
            print(f"{os.path.relpath(path)}:{line}: {rule}: {text[:150]}")
    print(f"{n_findings} places in {n_files} files are not in plain words")
    return bool(n_findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
