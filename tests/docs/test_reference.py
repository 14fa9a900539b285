"""The reference has every public name."""

import importlib

import pytest

from tests.support.processes import ROOT

PAGES = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.rst"))


@pytest.mark.parametrize(
    "package",
    [
        *("chainer_compat", "data_parallel", "divisible", "heterogeneous"),
        *("mixed_precision", "pipeline", "torch_layers"),
    ],
)
def test_every_public_name_is_in_the_reference(package):
    if package == "torch_layers":
        pytest.importorskip("torch")
    names = importlib.import_module(package).__all__
    directives = {line.split(":: ")[-1] for line in PAGES.splitlines() if ":: " in line}
    missing = [
        name
        for name in names
        if f"{package}.{name}" not in directives and not name.startswith("__")
    ]
    assert not missing
