import xml.etree.ElementTree as ET

from divisible import LayerCost, Profile, partition
from divisible.notebook_html import Rows, as_html, as_text


def texts(html):
    """Returns all texts of an element, and proves that it is well formed."""
    return [text for text in ET.fromstring(f"<a>{html}</a>").itertext() if text]


def test_texts_are_escaped_and_tables_keep_their_cells():
    parts = ["1 < 2 & \x1b[2J", Rows([("layer", "n"), ("<b>", "7")], left=(0,))]
    assert texts(as_html(parts)) == ["1 < 2 & \\x1b[2J", "layer", "n", "<b>", "7"]
    assert as_text(parts).splitlines()[1:] == ["layer  n", "<b>    7"]


def test_plans_and_profiles_have_the_same_cells_in_html_as_in_text():
    layers = [LayerCost(t, t, t, name=f"<{t}>") for t in (1.0, 2.0, 3.0, 1.0)]
    profile = Profile(layers, n_samples=4)
    for shown in (profile, partition(profile, 2)):
        found = " ".join(texts(shown._repr_html_())).split()
        assert found == str(shown).split()
