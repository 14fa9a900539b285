"""Fig. 5 by its command, of few units."""

from matplotlib.image import imread

from tests.support.mpiexec import mpiexec

COMMAND = ["-m", "benchmarks.paper_tables.figure_5", "--units", 16, "--layers", 4]


def test_the_command_writes_three_tables_a_finding_and_a_picture(tmp_path):
    output = tmp_path / "figure_5.txt"
    argv = [*COMMAND, "--rounds", 2, "--output", output]
    done = mpiexec(2, argv, has_project=True)
    assert done.returncode == 0, done.stdout
    text = output.read_text()
    assert "4 layers of 16 units, 32 samples in 4 microbatches on 2 ranks" in text
    lines = text.splitlines()
    tables = [i for i, line in enumerate(lines) if line.startswith("rank  forward")]
    assert len(tables) == 3
    for i in tables:
        assert [line.split()[0] for line in lines[i + 1 : i + 3]] == ["0", "1"]
    *ratios, last = [float(each.split()[-1]) for each in lines[-1].split(";")]
    assert len(ratios) == 2 and all(ratio > 0 for ratio in [*ratios, last])
    assert imread(tmp_path / "figure_5.png").shape[1] > 1000


def test_one_backward_has_no_later_ones():
    done = mpiexec(1, [*COMMAND, "--microbatches", 1])
    assert done.returncode != 0
    assert "--microbatches must be 2 or more" in done.stdout
