"""Writes the page of ``divisible explore`` beside the documentation.

Its answers are computed while the documentation is built, because there is no server.
"""

from __future__ import annotations

import pathlib

from divisible.explore.sources import Sources
from divisible.explore.standalone import write_page

#: The file, beside the first page of the documentation.
FILE = "explore.html"


def _write(app, exception) -> None:
    if exception is None and app.builder.format == "html":
        write_page(pathlib.Path(app.outdir) / FILE, Sources())


def setup(app) -> dict[str, bool]:
    """Connects the writing of the page with the end of a build."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
