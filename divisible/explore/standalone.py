"""The page as one file, with answers that were computed beforehand.

The file needs no server and no network. Its modules are joined into one script, as a
browser loads no modules from a file beside a page that was opened from a folder::

    index.html + style.css + modules + answers  -->  page.html
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from divisible.explore.answer import answer, start
from divisible.explore.question import Question
from divisible.explore.server import page_file
from divisible.explore.simulation import simulated
from divisible.explore.sources import Sources
from divisible.files import written_aside
from divisible.schedules.catalogue import NAMES

#: The modules of the page, each after those that it imports.
MODULES = (
    "service.js",
    "state.js",
    "drawing.js",
    "timeline.js",
    "grid.js",
    "memory.js",
    "cut.js",
    "exporting.js",
    "panel.js",
    "main.js",
)
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_SCRIPT = '<script type="module" src="main.js"></script>\n'
_STYLE = '<link rel="stylesheet" href="style.css">\n'


def write_page(path: str | os.PathLike, sources: Sources) -> None:
    """Writes the page as one file.

    Args:
        path: The file, which appears only when it is complete.
        sources: Contents of the files that were read. With a plan or profile, the
            schedules are those of its layers.

    Raises:
        OSError: If the file cannot be written.
    """
    text = page(sources)
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        file.write(text)


def page(sources: Sources) -> str:
    """Returns the page as HTML, with the answers for all schedules of the catalogue.

    Args:
        sources: See :func:`write_page`.
    """
    answers = [
        {
            "situation": situation,
            "question": question.to_json(),
            "answer": answer(simulated(question, sources), sources, with_reasons=True),
        }
        for situation, question in questions(sources)
    ]
    about = start(sources)
    about["question"] = answers[0]["question"]
    stored = _json({"start": about, "answers": answers})
    style = page_file("style.css").decode()
    html = page_file("index.html").decode()
    html = html.replace(_STYLE, f"<style>\n{style}</style>\n")
    html = html.replace(_SCRIPT, "")
    scripts = (
        f'<script type="application/json" id="stored">{stored}</script>\n'
        f'<script type="module">\n{script()}</script>\n'
    )
    return html.replace("</body>", f"{scripts}</body>")


def questions(sources: Sources) -> Iterator[tuple[str, Question]]:
    """Yields the situations and questions whose answers the page has.

    Args:
        sources: See :func:`write_page`.
    """
    first = sources.first_question()
    if first.layers or first.text is not None:
        yield "as given", first
    if first.layers:
        for name in NAMES:
            question = replace(first, schedule=name, cuts=None, chunks=2)
            n_stages = question.ranks * question.stages_per_rank
            if question != first and n_stages <= len(sources.profiles[0]):
                yield "the same layers", question
        return
    for name in NAMES:
        plain = Question(name)
        yield "F, I and W take equally long", plain
        yield "I takes twice as long", replace(plain, backward_input=2.0)
        yield "messages take half of F", replace(plain, latency=0.5)


def script() -> str:
    """Returns the modules of the page as one script."""
    parts = (page_file(name).decode() for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", part)) for part in parts)


def _json(content: Any) -> str:
    # No text may end the element that has the JSON.
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
