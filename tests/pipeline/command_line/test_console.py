"""What commands print fits the terminal."""

import pytest
from click.testing import CliRunner

from divisible import LayerCost, Profile
from divisible.planning.tables import PROFILE_COLUMNS, profile_rows
from pipeline.command_line import console, plan
from pipeline.command_line.main import main


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_cell_of_a_table_is_cut_off(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    layer = LayerCost(
        *(0.0123, 0.000456, 12.3),
        output_bytes=1234567,
        activation_bytes=10**9,
        parameter_bytes=10**8,
        name="Convolution2D(in_channels=300, out_channels=3)",
    )
    rows = profile_rows([layer] * 3, None)
    console.print_table(PROFILE_COLUMNS, rows, left=(1,))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    for row in rows:
        assert all(cell in printed for cell in row)
    # Each part names the layers.
    n_parts = printed.count("layer ")
    assert n_parts == (1 if width == 200 else printed.count("sum"))
    assert (n_parts > 1) == (width < 140)


def test_a_plan_is_told_on_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    costs = [LayerCost(0.01 * (1 + i % 3), 0.01, 0.01) for i in range(12)]
    Profile(costs, n_samples=32).save("p.json")
    arguments = ["plan", "p.json", "--ranks", "2", "--latency", "1ms"]
    found, search = [], plan.best_plan

    def searched_once(*args, **options):
        found[:] = found or [search(*args, **options)]
        return found[0]

    monkeypatch.setattr(plan, "best_plan", searched_once)
    short, whole = (
        CliRunner().invoke(main, [*arguments, *more]).output.splitlines()
        for more in ([], ["--all"])
    )
    assert len(short) < 40
    # Five alternatives, each with its reason below.
    at = short.index("not chosen, and why:")
    names = [line for line in short[at:] if line.startswith("  ") and line[2] != " "]
    assert len(names) == 6 and names[-1].endswith("more: --all shows them")
    assert all(len(line) <= 80 for line in short)
    reasons = [line for line in short[at:] if line.startswith("      ")]
    assert len(reasons) >= 5 and max(map(len, reasons)) > 60
    headline = short[short.index("written to plan.json") + 1 :]
    assert headline[0].startswith("12 layers cut at")
    assert headline == whole[-len(headline) :]
    n_more = int(names[-1].split()[1])
    names = [line for line in whole if line.startswith("  ") and line[2] != " "]
    assert sum("stage" in name for name in names) >= 5 + n_more - 2
