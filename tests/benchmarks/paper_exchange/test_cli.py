"""The command trains what is missing, and writes the page."""

import json
import sys

import pytest

from benchmarks.paper_exchange import cli, experiments, look, page
from benchmarks.paper_exchange.experiments import Scale
from tests.benchmarks.paper_exchange.test_findings import curve


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["paper_exchange", *map(str, arguments)])
    # Processes of xdist have none.
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", cli.__spec__)
    cli.main()


@pytest.mark.parametrize("quick", [False, True])
def test_arguments(monkeypatch, quick):
    options = ["--quick"] if quick else []
    monkeypatch.setattr(sys, "argv", ["paper_exchange", *options, "--seeds", "2"])
    scale = cli.scale_of(cli.parse())
    assert scale == (experiments.SMALL if quick else Scale())._replace(seeds=2)


def test_a_part_beyond_all_steps_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--part", 1.5)
    assert "--part must be in (0, 1], not 1.5" in capsys.readouterr().err


def test_nothing_can_be_resumed_where_nothing_began(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="is not there: leave out --resume"):
        run(monkeypatch, "--resume", "--output", tmp_path)


def test_a_run_that_was_stopped_goes_on(monkeypatch, tmp_path):
    """The size of the experiments is that of the beginning."""
    began, written = [], []

    def train_all(todo, scale, file, n_processes):
        began.append((len(todo), scale.part))
        # The first time one run is left.
        for job in todo[: -1 if len(began) == 1 else None]:
            found = curve(job.task, job.way, job.seed, 90.0)
            with file.open("a") as lines:
                lines.write(json.dumps(found._asdict()) + "\n")
            yield found

    monkeypatch.setattr(cli, "train_all", train_all)
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(look, "look", lambda scale: "a look")
    monkeypatch.setattr(page, "write", lambda *arguments: written.append(arguments))
    run(monkeypatch, "--quick", "--part", 0.3, "--output", tmp_path)
    run(monkeypatch, "--resume", "--output", tmp_path)
    run(monkeypatch, "--resume", "--output", tmp_path)
    assert began == [(12, 0.3), (1, 0.3), (0, 0.3)]
    folder, origin, curves, _ = written[-1]
    assert folder == tmp_path and origin.scale.part == 0.3
    assert sum(map(len, curves.values())) == 12
