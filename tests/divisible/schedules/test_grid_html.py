import xml.etree.ElementTree as ET

from divisible.schedules import gpipe, one_f_one_b


def rows(schedule):
    """Returns the title and the texts of the cells, row by row."""
    root = ET.fromstring(f"<a>{schedule._repr_html_()}</a>")
    cells = [[cell.text or "." for cell in row] for row in root.iter("tr")]
    return root.find("div").text, cells


def test_the_grid_is_that_of_the_text():
    schedule = one_f_one_b(n_stages=2, n_microbatches=3)
    title, (_, *found) = rows(schedule)
    assert title == "1f1b: 3 microbatches, 2 stages on 2 ranks"
    lines = [line.split()[2:] for line in str(schedule).splitlines()[2:]]
    assert [row[1:] for row in found] == lines


def test_a_large_schedule_is_cut_and_its_title_says_so():
    title, found = rows(gpipe(n_stages=100, n_microbatches=200))
    assert title.endswith("the first 64 ranks and 256 of 598 steps")
    assert len(found) == 65 and len(found[1]) == 257
