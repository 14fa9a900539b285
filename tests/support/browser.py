"""A headless Chromium for tests of pages, where one is installed.

The tests are skipped without the package ``playwright``, or without a Chromium: Debian
has one as ``chromium``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from divisible.explore.server import Server
from divisible.explore.sources import Sources

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Milliseconds that a page may take on a busy machine.
PATIENCE = 60_000


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Opens a browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, _NAMES)), ""
    )
    if not found:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def serving(sources: Sources) -> Iterator[str]:
    """Serves the page of ``divisible explore``, and yields its address."""
    with Server(sources) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), daemon=True
        )
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join(10)


class Visit:
    """A page in a browser, and what it loaded and complained of.

    Args:
        browser: The browser.
        url: The address.
        size: Width and height of the window.
    """

    def __init__(
        self, browser: Any, url: str, size: tuple[int, int] = (1280, 900)
    ) -> None:
        self._context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, accept_downloads=True
        )
        self.page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)
        self.settle()

    def settle(self) -> None:
        """Waits until each panel has drawn its answer, or shows a refusal."""
        self.page.wait_for_function(
            "() => document.querySelector('.panel')"
            " && !document.querySelector('.panel.waiting')"
            " && [...document.querySelectorAll('.panel')].every(each =>"
            " each.querySelector('.facts').children.length"
            " || !each.querySelector('.refused').hidden)"
        )

    def set(self, name: str, value: str, panel: int = 0) -> None:
        """Sets a control of a panel, and waits for the drawing."""
        control = self.panel(panel).locator(f"[name={name}]")
        if control.evaluate("each => each.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)
        self.settle()

    def panel(self, number: int = 0) -> Any:
        """Returns one of the panels."""
        return self.page.locator(".panel").nth(number)

    def text(self, selector: str, panel: int = 0) -> str:
        """Returns the text of a part of a panel."""
        return self.panel(panel).locator(selector).inner_text()

    def drawing(self, panel: int = 0) -> str:
        """Returns all that a panel draws, as markup."""
        return self.panel(panel).evaluate(
            "each => [...each.querySelectorAll('svg, .facts, .formula, .over')]"
            ".map(part => part.outerHTML).join('')"
        )

    def order(self, panel: int = 0) -> str:
        """Returns the text of the schedule in a panel."""
        return self.panel(panel).locator("textarea").input_value()

    def close(self) -> None:
        """Leaves the page."""
        self._context.close()
