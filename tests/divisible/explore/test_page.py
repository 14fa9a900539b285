"""The page in a headless Chromium: its controls, what one does with it, its hosts."""

import json
import re
import urllib.parse
from xml.etree import ElementTree

import pytest

from divisible import simulate
from divisible.explore.sources import Sources
from divisible.explore.standalone import write_page
from divisible.schedules import Costs, Schedule, one_f_one_b
from tests.support.browser import Visit, chromium, serving
from tests.support.explored import plan_of, uneven_profile

# A browser takes seconds to start.
pytestmark = pytest.mark.slow

#: Where rank 3 waits for its first message, in the picture of a timeline.
IN_RANK_3 = {"x": 64, "y": 6 + 3.5 * 28}
IS_MOVED = "n => document.querySelector('.layers button').ariaValueNow === n"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def url(browser):
    with serving(Sources()) as found:
        yield found


@pytest.fixture
def visit(browser, url):
    """Opens pages; at the end none has asked another host, or had an error."""
    visits = []

    def open_page(fragment="", at=url, **options):
        visits.append(Visit(browser, at + fragment, **options))
        return visits[-1]

    yield open_page
    for each in visits:
        assert each.errors == []
        hosts = {urllib.parse.urlsplit(asked).hostname for asked in each.asked}
        assert hosts <= {"127.0.0.1", None}
        each.close()


def fragment(**fields):
    return "#" + urllib.parse.quote(json.dumps({"a": fields}))


#: A value for each control, other than the one it has.
VALUES = {
    "schedule": "interleaved_zb",
    "ranks": "3",
    "chunks": "3",
    "microbatches": "5",
    "minibatches": "2",
    "groups": "2",
    "forward": "2",
    "backward_input": "1, 2, 1, 1, 1, 1, 1, 1, 1",
    "backward_weight": "0.5",
    "message": "0.5",
    "latency": "0.25",
    "memory": "2",
}


def test_each_control_changes_the_drawing_and_the_link(visit):
    page = visit()
    # 1F1B has one stage on each rank.
    assert page.panel().locator("[name=chunks]").is_disabled()
    for name, value in VALUES.items():
        before, address = page.drawing(), page.page.url
        page.set(name, value)
        assert page.panel().locator(".refused").is_hidden(), name
        assert page.drawing() != before, name
        assert page.page.url != address, name
    assert "9 stages" in page.order()
    # The link opens the same page.
    again = visit(at=page.page.url)
    assert again.drawing() == page.drawing()


def test_messages_and_the_critical_path_can_be_hidden(visit):
    page = visit()
    for name in ("messages", "critical"):
        before = page.drawing()
        page.page.locator(f".tools [name={name}]").uncheck()
        assert page.drawing() != before


def test_facts_and_formula_are_those_of_python(visit):
    page = visit()
    assert "33 s" in page.text(".facts")
    assert page.text(".formula").endswith("33 s")
    page.set("latency", "1")
    assert "messages take no time" in page.text(".formula")
    page.set("memory", "2")
    assert "rank 0 holds 4 at its peak, above the limit of 2" in page.text(".over")


def test_wrong_values_are_refused_in_pythons_words(visit):
    page = visit()
    page.set("forward", "fast")
    assert "forward is 'fast': it must be a number" in page.text(".refused")
    page.set("forward", "1")
    assert page.panel().locator(".refused").is_hidden()


def test_a_click_on_a_wait_is_answered(visit):
    page = visit()
    # Rank 3 of 4 waits at the beginning.
    page.panel().locator("svg.timeline").click(position=IN_RANK_3)
    page.page.wait_for_function("() => document.querySelector('.why').textContent")
    assert "Rank 3 waits for 3 s, from 0 to 3 s, for the message 2F0>3" in page.text(
        ".why"
    )


def test_the_keyboard_asks_and_moves(visit):
    page = visit()
    page.panel().locator("svg.timeline").focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.page.keyboard.press(key)
    page.page.wait_for_function("() => document.querySelector('.why').textContent")
    assert "Rank 1 waits" in page.text(".why")
    order = page.order()
    page.panel().locator("svg.grid").focus()
    for _ in range(6):
        page.page.keyboard.press("ArrowRight")
    # 1F1B on rank 0: 0F0 0F1 0F2 0F3 0B0 0F4 0B1: the forward before the backward.
    page.page.keyboard.press("Alt+ArrowLeft")
    page.settle()
    page.page.wait_for_function("() => location.hash.includes('edited')")
    page.settle()
    assert page.order() != order
    edited = Schedule.parse(page.order())
    assert edited.name == "1f1b edited"
    edited.validate()
    page.panel().locator("[name=reset]").click()
    page.settle()
    assert page.order() == order


def test_dragging_moves_an_action_or_is_refused(visit):
    page = visit(fragment(ranks=2, microbatches=3))
    grid = page.panel().locator("svg.grid")
    order = page.order()

    def drag(source, target):
        grid.scroll_into_view_if_needed()
        area = grid.bounding_box()
        cell, y = 29, area["y"] + 16 + 12
        page.page.mouse.move(area["x"] + 58 + cell * (source + 0.5), y)
        page.page.mouse.down()
        page.page.mouse.move(area["x"] + 58 + cell * (target + 0.5), y, steps=4)
        page.page.mouse.up()

    # Rank 0: 0F0 0F1 . 0B0 0F2 0B1 . 0B2 in steps 0 to 7.
    drag(7, 0)
    page.page.wait_for_function("() => !document.querySelector('.refused').hidden")
    assert "0B2 runs before 0F2, whose result it needs" in page.text(".refused")
    assert "!0B2!" in page.text(".refused")
    assert page.order() == order
    drag(4, 3)
    page.page.wait_for_function("() => location.hash.includes('edited')")
    page.settle()
    assert "0F0 0F1 0F2" in re.sub(r"[ .]+", " ", page.order())


def test_files_have_the_text_and_the_picture(visit, tmp_path):
    page = visit(fragment(schedule="zb_h1", ranks=3, microbatches=4))
    for name, path in (("text", "mine.txt"), ("svg", "step.svg")):
        with page.page.expect_download() as found:
            page.panel().locator(f"button[name={name}]").click()
        assert found.value.suggested_filename.startswith("zb_h1.")
        found.value.save_as(tmp_path / path)
    schedule = Schedule.parse((tmp_path / "mine.txt").read_text(encoding="utf-8"))
    assert schedule.validate().held == (3, 3, 3)
    root = ElementTree.parse(tmp_path / "step.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Timeline of zb_h1" in root[0].text


def test_a_text_can_be_drawn(visit):
    page = visit()
    page.panel().locator("summary").click()
    page.panel().locator("textarea").fill(str(one_f_one_b(2, 2)))
    page.panel().locator("button[name=use]").click()
    page.page.wait_for_function("() => location.hash.includes('text')")
    page.settle()
    assert page.panel().locator("[name=ranks]").input_value() == "2"
    assert "Order of 1f1b: 2 microbatches" in page.drawing()


def test_two_schedules_have_one_scale(visit):
    page = visit()
    page.page.locator(".tools [name=compare]").check()
    page.settle()
    alone = page.drawing(0)
    page.set("schedule", "zb_h1", panel=1)
    assert page.drawing(0) == alone
    assert "27 s" in page.text(".facts", 1)
    again = visit(at=page.page.url)
    assert again.text(".facts", 1) == page.text(".facts", 1)
    boxes = [page.panel(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


def test_a_narrow_screen_has_all_in_one_column(visit):
    page = visit(size=(360, 700))
    page.page.locator(".tools [name=compare]").check()
    page.settle()
    assert page.page.evaluate("() => document.scrollingElement.scrollWidth") <= 360
    boxes = [page.panel(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]


def test_each_control_has_a_name_and_is_reached_by_tab(visit):
    page = visit()
    unnamed = page.page.evaluate(
        "() => [...document.querySelectorAll('input, select, textarea, button')]"
        ".filter(each => !each.labels?.length && !each.textContent.trim()"
        " && !each.getAttribute('aria-label')).length"
    )
    assert unnamed == 0
    reached = set()
    for _ in range(40):
        page.page.keyboard.press("Tab")
        reached.add(
            page.page.evaluate(
                "() => document.activeElement.name"
                " || document.activeElement.getAttribute('class')"
            )
        )
    assert {"compare", "schedule", "forward", "grid", "timeline", "text"} <= reached


#: Writes the time of a forward; milliseconds until the next frame after the drawing.
REDRAW = """
seconds => new Promise(resolve => {
  const control = document.querySelector("input[name=forward]");
  const began = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  }).observe(document.body, { attributeFilter: ["data-drawn"] });
  control.value = seconds;
  control.dispatchEvent(new Event("input", { bubbles: true }));
})
"""


def test_sixteen_ranks_and_64_microbatches_are_redrawn_quickly(visit):
    page = visit(fragment(schedule="zb_h1", ranks=16, microbatches=64))
    page.settle()
    times = [page.page.evaluate(REDRAW, f"1.{i}") for i in range(1, 10)]
    print("milliseconds of redrawing:", *(f"{each:.0f}" for each in times))
    # The question, its simulation and the drawing. Other programs delay some of them.
    assert min(times) < 200


def test_layers_are_cut_by_keys_and_by_dragging(browser, visit):
    with serving(Sources(plan_of(), [uneven_profile()])) as here:
        page = visit(at=here)
        handle = page.panel().locator(".layers button")
        assert handle.get_attribute("aria-valuenow") == "5"
        handle.focus()
        page.page.keyboard.press("ArrowRight")
        page.page.wait_for_function(IS_MOVED, arg="6")
        page.settle()
        assert handle.get_attribute("aria-valuenow") == "6"
        # The handle keeps the focus.
        page.page.keyboard.press("ArrowRight")
        page.page.wait_for_function(IS_MOVED, arg="7")
        page.settle()
        area = page.panel().locator(".layers").bounding_box()
        place = handle.bounding_box()
        y = place["y"] + place["height"] / 2
        page.page.mouse.move(place["x"] + place["width"] / 2, y)
        page.page.mouse.down()
        page.page.mouse.move(area["x"] + 1, y, steps=4)
        page.page.mouse.up()
        page.page.wait_for_function(IS_MOVED, arg="1")
        page.settle()
        page.panel().locator("button[name=even]").click()
        page.page.wait_for_function(IS_MOVED, arg="6")
        # Without layers, times are numbers again.
        page.panel().locator("[name=layers]").uncheck()
        page.settle()
        assert page.panel().locator(".cut").is_hidden()
        assert page.panel().locator("[name=forward]").is_enabled()


def test_a_measured_step_is_drawn_below_its_prediction(browser, visit):
    slow = Costs([1, 1.2, 0.9], 1, 1, latency=0.4)
    measured = simulate(one_f_one_b(3, 4), slow)
    with serving(Sources(measured=measured)) as here:
        page = visit(at=here)
        assert "measured against predicted" in page.text(".lost")
        assert "measured" in page.drawing()
        box = page.page.locator(".tools [name=measured]")
        before = page.drawing()
        box.uncheck()
        assert page.drawing() != before


def test_a_click_beside_the_middle_of_a_handle_moves_no_cut(browser, visit):
    # The handle is wider than three of these layers.
    n_layers = 300
    sources = Sources(plan_of(n_layers), [uneven_profile(n_layers)])
    with serving(sources) as here:
        page = visit(at=here)
        handle = page.panel().locator(".layers button")
        before = page.page.url
        handle.click(position={"x": 1, "y": 20})
        page.settle()
        assert page.page.url == before
        assert handle.get_attribute("aria-valuenow") == "150"


def test_a_measured_step_and_another_schedule_have_one_scale(browser, visit):
    slow = Costs([1, 1.2, 0.9], 1, 1, latency=0.4)
    measured = simulate(one_f_one_b(3, 4), slow)
    shown = {"a": {"ranks": 3, "microbatches": 4}, "b": {"ranks": 2}}
    shown["b"]["microbatches"] = 4
    with serving(Sources(measured=measured)) as here:
        page = visit("#" + urllib.parse.quote(json.dumps(shown)), at=here)
        axis = "svg.timeline text[fill='#555'][text-anchor=middle]"
        ticks = [page.panel(i).locator(axis).all_text_contents() for i in (0, 1)]
        # 18 s are predicted, and more than 20 s were measured.
        assert ticks[0] == ticks[1] == ["0", "5", "10", "15", "20"]


def test_the_page_as_a_file_shows_what_its_controls_say(visit, tmp_path):
    path = tmp_path / "page.html"
    write_page(path, Sources(plan_of(), [uneven_profile()]))
    page = visit(at=path.as_uri())
    situation = page.panel().locator("[name=situation]")
    assert situation.input_value() == "as given"
    for schedule in ("gpipe", "zb_v"):
        page.set("schedule", schedule)
        assert situation.input_value() == "the same layers"
        assert f"Order of {schedule}" in page.drawing()
    page.set("situation", "as given")
    assert page.panel().locator("[name=schedule]").input_value() == "1f1b"
    assert "Order of 1f1b" in page.drawing()
    # Cuts stay: no server would answer.
    assert page.panel().locator(".layers button").is_disabled()
    assert page.panel().locator("button[name=even]").is_hidden()


def test_the_page_as_a_file_needs_no_server(visit, tmp_path):
    path = tmp_path / "page.html"
    write_page(path, Sources())
    page = visit(at=path.as_uri())
    before = page.drawing()
    page.set("schedule", "zb_v")
    assert page.drawing() != before
    page.set("situation", "messages take half of F")
    page.panel().locator("svg.timeline").click(position=IN_RANK_3)
    page.page.wait_for_function("() => document.querySelector('.why').textContent")
    assert "for the message 2F0>3" in page.text(".why")
    assert page.panel().locator("[name=ranks]").is_hidden()
    assert {urllib.parse.urlsplit(each).scheme for each in page.asked} <= {
        "file",
        "data",
        "blob",
    }
