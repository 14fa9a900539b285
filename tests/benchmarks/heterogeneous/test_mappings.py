"""The table of mappings."""

import sys

import pytest

from benchmarks.heterogeneous import mappings
from benchmarks.heterogeneous.mappings import CONDITIONS, balance


@pytest.mark.parametrize("condition", CONDITIONS)
def test_rectangles_balance_perfectly(condition):
    abilities = CONDITIONS[condition]
    found = dict(mappings.mappings(abilities))
    assert len(found) == 14
    for name in ("SRPM", "SRPM, any", "H_rev, 1", "H_rev, 8"):
        assert balance(found[name], abilities) == pytest.approx(1)
    assert 1.06 <= balance(found["H_rev, 4"], abilities) <= 1.38
    assert balance(found["method 1, 2"], abilities) > 1.2


@pytest.mark.matrix
def test_the_table(tmp_path, monkeypatch):
    path = tmp_path / "table.txt"
    spec = mappings.__spec__
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", ["mappings", "--output", str(path)])
    mappings.main()
    lines = path.read_text().splitlines()
    assert lines[0].startswith("python -m benchmarks.heterogeneous.mappings")
    assert sum("condition" in line for line in lines) == 10
    assert any(line.split()[:2] == ["SRPM", "76272"] for line in lines)
