"""The page as one file: all modules, no address of another host."""

import json
import re

from divisible.explore.server import page_file
from divisible.explore.sources import Sources
from divisible.explore.standalone import MODULES, page, questions, script, write_page
from divisible.schedules import NAMES
from tests.support.explored import plan_of, uneven_profile


def test_modules_come_after_those_that_they_import():
    known = set()
    for name in MODULES:
        text = page_file(name).decode()
        imported = set(re.findall(r'from "\./([\w.]+)"', text))
        assert imported <= known
        known.add(name)


def test_each_name_of_the_script_is_there_once():
    names = re.findall(
        r"^(?:async )?(?:function|const|let|class) (\w+)", script(), re.MULTILINE
    )
    assert len(names) > 40
    assert len(names) == len(set(names))
    assert not re.search(r"^(import|export)\b", script(), re.MULTILINE)


def test_the_page_needs_no_other_file(tmp_path):
    path = tmp_path / "page.html"
    sources = Sources(plan_of(), [uneven_profile()])
    write_page(path, sources)
    text = path.read_text(encoding="utf-8")
    assert "src=" not in re.sub(r"<script type[^>]*>.*?</script>", "", text, flags=re.S)
    addresses = set(re.findall(r"https?://[\w.]+", text))
    # The name of a format, which nothing is loaded from.
    assert addresses <= {"http://www.w3.org"}
    stored = re.search(r'id="stored">(.*?)</script>', text, re.S)[1]
    content = json.loads(stored)
    assert content["answers"][0]["question"] == content["start"]["question"]
    assert content["answers"][0]["answer"]["cuts"] == [0, 5, 10]
    assert list(tmp_path.iterdir()) == [path]


def test_no_text_ends_the_element_with_the_answers():
    profile = uneven_profile(4)
    object.__setattr__(profile.layers[0], "name", "</script><b>")
    text = page(Sources(profiles=[profile]))
    assert "</script><b>" not in text


def test_without_files_all_schedules_are_there():
    asked = list(questions(Sources()))
    assert {question.schedule for _, question in asked} == set(NAMES)
    assert len({situation for situation, _ in asked}) == 3
