"""The program for clusters, from the profile to a job that goes on elsewhere."""

import json
import shutil

from click.testing import CliRunner

from divisible import Plan
from divisible.schedules.timeline import Timeline
from pipeline.command_line.main import main
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT


def divisible(*argv):
    done = CliRunner().invoke(main, [*map(str, argv)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def train(n, folder, *argv):
    script = ["-m", "pipeline", folder / "train.py", "--out", folder / "result", *argv]
    done = mpiexec(n, [*script, "--resume", "auto"], has_project=True)
    assert done.returncode == 0, done.stdout
    log = json.loads((folder / "result" / "log").read_text())
    return done.stdout, log


def test_a_job_follows_a_plan_and_goes_on_on_other_ranks(tmp_path):
    folder = tmp_path / "job"
    shutil.copytree(
        ROOT / "examples" / "cluster",
        folder,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    model = f"{folder / 'model.py'}:Network(4)"
    profiles = []
    for batch in (8, 32):
        profiles.append(folder / f"profile-{batch}.json")
        divisible(
            *("profile", model, "--input", "1x8x8", "--repeat", 1),
            *("--batch", batch, "-o", profiles[-1]),
        )
    plan = folder / "plan.json"
    few = "--schedule", "1f1b", "--recompute", "never"
    divisible("plan", *profiles, "--ranks", 2, "--batch", 64, *few, "-o", plan)
    # Whatever is best on this machine, the job is to follow this one.
    chosen = Plan.load(plan)
    Plan([0, 3, 6, 9, 13], 4, "interleaved", stages_per_rank=2).save(plan)
    assert chosen.n_layers == 13
    small = ["--width", 4]
    _, log = train(2, folder, *small, "--plan", plan, "--epoch", 2, "--half")
    assert [entry["epoch"] for entry in log] == [1, 2]
    timeline = Timeline.load(folder / "result" / "timeline_45.json")
    assert timeline.n_ranks == 2
    _, log = train(1, folder, *small, "--epoch", 3, "--half")
    assert [entry["epoch"] for entry in log] == [1, 2, 3]
    assert log[-1]["main/loss"] < log[0]["main/loss"]
