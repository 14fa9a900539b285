"""Takes the pictures of docs/howto/explore.rst in a headless Chromium.

::

    python -m tests.support.page_pictures PROFILE TIMELINE docs/explore

PROFILE is of any model of ten layers or so, TIMELINE of a run on a few ranks, such as
``result/timeline.json`` of examples/train.
"""

from __future__ import annotations

import json
import sys
import urllib.parse
from pathlib import Path
from typing import Any

from PIL import Image

from divisible import Profile
from divisible.explore.sources import Sources
from divisible.schedules.timeline import Timeline
from tests.support.browser import Visit, chromium, serving

SIZE = (980, 760)


def take(visit: Visit, path: Path, height: int = SIZE[1]) -> None:
    """Saves what is in the window."""
    width = visit.page.viewport_size["width"]
    visit.page.set_viewport_size({"width": width, "height": height})
    visit.settle()
    visit.page.screenshot(path=path)
    # A page has few colours, so a palette makes the file several times smaller.
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
    print(path)


def fragment(**panels: dict) -> str:
    """Returns the part of the address that keeps questions."""
    return "#" + urllib.parse.quote(json.dumps(panels))


def schedule_and_wait(browser: Any, folder: Path) -> None:
    """Takes the page as it opens, and the answer to a click."""
    with serving(Sources()) as url:
        plain = fragment(a={"schedule": "1f1b", "latency": 0.25})
        visit = Visit(browser, url + plain, SIZE)
        take(visit, folder / "schedule.png", 800)
        visit.panel().locator("svg.timeline").click(position={"x": 180, "y": 70})
        visit.page.wait_for_function("() => document.querySelector('.why').textContent")
        place = visit.panel().locator("h2").nth(2).bounding_box()
        visit.page.mouse.wheel(0, place["y"])
        take(visit, folder / "why.png", 520)
        visit.close()


def refused_order(browser: Any, folder: Path) -> None:
    """Takes an order that would stop for ever."""
    with serving(Sources()) as url:
        visit = Visit(browser, url + fragment(a={"ranks": 3}), SIZE)
        visit.panel().locator("svg.grid").focus()
        # 0B0 moves before 0F2, and then before 0F1, which rank 1 needs first.
        for key in ("ArrowRight",) * 4 + ("Alt+ArrowLeft",):
            visit.page.keyboard.press(key)
        visit.page.wait_for_function("() => location.hash.includes('edited')")
        visit.settle()
        visit.panel().locator("svg.grid").focus()
        visit.page.wait_for_timeout(500)
        visit.page.keyboard.press("Alt+ArrowLeft")
        visit.page.wait_for_function("() => !document.querySelector('.refused').hidden")
        take(visit, folder / "refused.png", 720)
        visit.close()


def layers_of_a_model(browser: Any, profile: str, folder: Path) -> None:
    """Takes two schedules of a model, side by side."""
    with serving(Sources(profiles=[Profile.load(profile)])) as url:
        layers = {"layers": True, "ranks": 2}
        both = fragment(a=layers, b={**layers, "schedule": "zb_v"})
        visit = Visit(browser, url + both, (1400, 900))
        take(visit, folder / "layers.png", 900)
        visit.close()


def measured_step(browser: Any, timeline: str, folder: Path) -> None:
    """Takes a measured step below its prediction."""
    with serving(Sources(measured=Timeline.load(timeline))) as url:
        visit = Visit(browser, url, SIZE)
        place = visit.panel().locator("h2").nth(1).bounding_box()
        visit.page.mouse.wheel(0, place["y"])
        take(visit, folder / "measured.png", 620)
        visit.close()


def main(profile: str, timeline: str, folder: Path) -> None:
    """Takes all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        schedule_and_wait(browser, folder)
        refused_order(browser, folder)
        layers_of_a_model(browser, profile, folder)
        measured_step(browser, timeline, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
