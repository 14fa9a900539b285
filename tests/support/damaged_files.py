"""Random damages of files, by a seed: of bytes, of JSON, of arrays.

::

    real file --> some bytes changed, removed, doubled
              --> or a field of the JSON in it replaced by nonsense
              --> or an archive with other keys, headers, pickles that run code
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import zipfile
from random import Random
from typing import Any

import numpy as np

#: The title of a window, a clear screen, and text that is written backwards.
ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
_NONSENSE = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3,
        2**31,
        10**10,
        2**63,
        10**25,
        10**400,
        -(10**400),
    ),
    *(0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), float("-inf")),
    *("", "a\nb", "1F0", "\ud800", "9" * 5000, ESCAPES, "x" + ESCAPES),
    *([], {}, [1, 2], {"a": 1}, [[]], [{}], [None], {ESCAPES: ESCAPES}),
]


class RunsCode:
    """An object whose pickle makes a folder when it is read.

    Args:
        marker: The folder.
    """

    def __init__(self, marker: str | os.PathLike) -> None:
        self._marker = os.fspath(marker)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self._marker,)


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """Returns bytes some of which were changed, removed, added or doubled."""
    for _ in range(random.randint(1, 3)):
        start = random.randint(0, len(data))
        end = random.randint(start, min(len(data), start + random.choice([1, 4, 4000])))
        put = random.choice(
            [
                b"",
                random.randbytes(end - start),
                data[start:end] * 2,
                b"\0" * (end - start),
                b"\xff",
                b"\x1b[2J",
                b"[" * 5000,
                b"9" * 5000,
            ]
        )
        data = data[:start] + put + data[end:]
    return data


def damaged_json(content: Any, random: Random) -> Any:
    """Returns another content in which something was replaced, removed or added."""
    content = json.loads(json.dumps(content))
    for _ in range(random.randint(1, 2)):
        if isinstance(content, (dict, list)) and content:
            _damage(content, random)
    return content


def _damage(content: Any, random: Random) -> None:
    while True:
        is_dict = isinstance(content, dict)
        key = random.choice(list(content) if is_dict else range(len(content)))
        inner = content[key]
        if isinstance(inner, (dict, list)) and inner and random.random() < 0.8:
            content = inner
            continue
        kind = random.random()
        if kind < 0.15:
            del content[key]
        elif kind < 0.25 and is_dict:
            content[random.choice(["unknown", ESCAPES, ""])] = copy.deepcopy(inner)
        elif kind < 0.25:
            content.insert(key, copy.deepcopy(inner))
        else:
            # One that is damaged itself later must not be so for the next file.
            content[key] = copy.deepcopy(random.choice(_NONSENSE))
        return


def damaged_text(text: str, random: Random) -> bytes:
    """Returns what may have become of a file of JSON."""
    if random.random() < 0.3:
        return damaged_bytes(text.encode(), random)
    return json.dumps(damaged_json(json.loads(text), random)).encode()


def damaged_lines(text: str, random: Random) -> bytes:
    """Returns what may have become of a file with JSON in each line."""
    lines = text.splitlines()
    for number in random.sample(range(len(lines)), random.randint(1, 3)):
        lines[number] = damaged_text(lines[number], random).decode(errors="replace")
    data = "\n".join(lines).encode(errors="replace")
    return damaged_bytes(data, random) if random.random() < 0.2 else data


def damaged_npz(data: bytes, random: Random, marker: str | os.PathLike) -> bytes:
    """Returns what may have become of a file of arrays.

    Args:
        data: The file.
        random: Decides.
        marker: The folder that a pickle makes if it is read.
    """
    if random.random() < 0.4:
        return damaged_bytes(data, random)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(random.randint(1, 2)):
        if members:
            _damage_member(members, random, marker)
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", random.choice([0, zipfile.ZIP_DEFLATED])
    ) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _damage_member(
    members: dict[str, bytes], random: Random, marker: str | os.PathLike
) -> None:
    name = random.choice(list(members))
    kind = random.randrange(6)
    if kind == 0:
        members[name + ESCAPES + random.choice(["", ".npy"])] = members.pop(name)
    elif kind == 1:
        del members[name]
    elif kind == 2:
        members[name] = damaged_bytes(members[name], random)
    elif kind == 3:
        # As many numbers as no file has, and none of them there.
        shape = random.choice([(10**10,), (2**40, 2**40), (-1,), (0,), ()])
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
        size = len(header).to_bytes(2, "little")
        members[name] = b"\x93NUMPY\x01\x00" + size + header.encode()
    elif kind == 4:
        file = io.BytesIO()
        values: list[Any] = [RunsCode(marker), None, ESCAPES, 3]
        np.save(file, np.array(random.choice(values), object), allow_pickle=True)
        members[name] = file.getvalue()
    else:
        members[name] = random.choice(
            [pickle.dumps(RunsCode(marker)), b"", b"\x80\x04"]
        )
