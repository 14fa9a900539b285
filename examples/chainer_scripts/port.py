"""Ports Chainer's own scripts to a pipeline.

    python examples/chainer_scripts/port.py CHAINER_SRC OUT_DIR

CHAINER_SRC is a clone of Chainer's repository at v7.8.1; its source distribution has no
examples. The edits are read from the lessons beside this file, such as train_mnist.rst.
Each edit is made where its old lines stand in the script, whole and in a row. If they
stand nowhere, or more than once, the program reports that and writes nothing. OUT_DIR
must be new.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent

# Paths in Chainer's tree and in OUT_DIR, and the lesson. Files without a lesson are
# copied.
FILES = [
    ("examples/mnist/train_mnist.py", "train_mnist.py", "train_mnist.rst"),
    ("examples/cifar/train_cifar.py", "train_cifar.py", "train_cifar.rst"),
    ("examples/ptb/train_ptb.py", "train_ptb.py", "train_ptb.rst"),
    ("examples/vae/train_vae.py", "vae/train_vae.py", "train_vae.rst"),
    ("examples/vae/net.py", "vae/net.py", None),
    ("examples/dcgan/train_dcgan.py", "dcgan/train_dcgan.py", "train_dcgan.rst"),
    ("examples/dcgan/updater.py", "dcgan/updater.py", "train_dcgan.rst"),
    ("examples/dcgan/visualize.py", "dcgan/visualize.py", "train_dcgan.rst"),
    ("examples/dcgan/net.py", "dcgan/net.py", None),
    ("examples/seq2seq/seq2seq.py", "seq2seq.py", "seq2seq.rst"),
    ("examples/cifar/models/__init__.py", "models/__init__.py", None),
    ("examples/cifar/models/VGG.py", "models/VGG.py", None),
]

BLOCK = re.compile(r"^\.\. code-block:: diff\n\n((?:   .*\n|\n)+)", re.MULTILINE)
# A section of a lesson, on another file than the script that it is named after.
SECTION = re.compile(r"^(\w+\.py)\n-+\n", re.MULTILINE)


class Edit(NamedTuple):
    """One edit of a lesson: consecutive lines, and the lines that replace them."""

    origin: str
    file: str
    old: list[str]
    new: list[str]


def read_edits(lesson: Path) -> list[Edit]:
    """Reads the edits of a lesson, which are its blocks of the language ``diff``.

    As in a diff, ``-`` marks old lines, ``+`` new ones, and a blank lines that stay.
    They change the script that the lesson is named after, or the file that is the title
    of their section.
    """
    text = lesson.read_text(encoding="utf-8")
    edits = []
    for block in BLOCK.finditer(text):
        line_number = text.count("\n", 0, block.start(1)) + 1
        *_, file = [f"{lesson.stem}.py", *SECTION.findall(text, 0, block.start())]
        edit = Edit(f"{lesson.name}:{line_number}", file, [], [])
        marked = {"-": [edit.old], "+": [edit.new], " ": [edit.old, edit.new]}
        for line in textwrap.dedent(block[1]).rstrip("\n").split("\n"):
            # The mark of an empty line that stays is easily lost.
            mark, code = line[:1] or " ", line[1:]
            for lines in marked[mark]:
                lines.append(f"{code}\n")
        edits.append(edit)
    return edits


def edits_of(original: str, lesson: str | None) -> list[Edit]:
    """Reads the edits of one file in Chainer's tree; none if it has no lesson."""
    edits = read_edits(HERE / lesson) if lesson else []
    return [edit for edit in edits if edit.file == Path(original).name]


def apply_edits(edits: list[Edit], text: str) -> str:
    """Makes all edits on the text of a script.

    Raises:
        ValueError: If an edit does not have exactly one place, or two edits share a
            line. The message names every such edit, and its old lines.

    """
    lines = text.splitlines(keepends=True)
    placed, faults = [], []
    for edit in edits:
        starts = find(edit.old, lines)
        if len(starts) == 1:
            placed.append((starts[0], edit))
        else:
            numbers = ", ".join(str(start + 1) for start in starts)
            where = f"several places, lines {numbers}" if starts else "no place"
            old = textwrap.indent("".join(edit.old), "    ")
            faults.append(f"the edit of {edit.origin} has {where}:\n{old}")
    edited, end = [], 0
    for start, edit in sorted(placed):
        if start < end:
            faults.append(f"the edit of {edit.origin} is in the place of another\n")
        edited += lines[end:start] + edit.new
        end = start + len(edit.old)
    if faults:
        raise ValueError("".join(faults))
    return "".join(edited + lines[end:])


def find(wanted: list[str], lines: list[str]) -> list[int]:
    """Returns every index at which the wanted lines begin."""
    size = len(wanted)
    starts = range(len(lines) - size + 1)
    return [start for start in starts if lines[start : start + size] == wanted]


def main() -> None:
    """Ports all files, or none."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, metavar="CHAINER_SRC")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    arguments = parser.parse_args()
    ported, faults = {}, []
    for original, target, lesson in FILES:
        path = arguments.source / original
        try:
            edits = edits_of(original, lesson)
            ported[target] = apply_edits(edits, path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            faults.append(f"{path}: there is no such file\n")
        except ValueError as error:
            faults.append(f"{path}: {error}")
    if arguments.out.exists():
        faults.append(f"{arguments.out}: exists already\n")
    if faults:
        sys.exit("".join(faults) + "Nothing was written.")
    for target, text in ported.items():
        path = arguments.out / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
