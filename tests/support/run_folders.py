"""Folders as runs leave them behind."""

from __future__ import annotations

import json
from pathlib import Path

from divisible.schedules import Timeline
from pipeline.watching.journal import add_to_journal
from pipeline.watching.status_files import RankStatus, make_folder
from pipeline.watching.step_seconds import StepSeconds

#: Seconds since 1970.
STARTED = 1_700_000_000.0
USUAL = StepSeconds(
    computing=0.5,
    sending=0.01,
    waiting=0.3,
    updating=0.05,
    between=0.04,
    span=0.81,
    on_cpu=0.6,
    queued=0.0,
    stored=0.0,
)


def status(rank: int, n_ranks: int, **changes) -> RankStatus:
    """Returns the state of a rank in the middle of a calm run."""
    given = {
        "job": "job",
        "rank": rank,
        "n_ranks": n_ranks,
        "replica": 0,
        "host": f"node{rank}",
        "process": 4711 + rank,
        "time": STARTED + 90.0,
        "n_steps": 100,
        "stages": {str(rank): [3 * rank, 3 * rank + 3]},
        "epoch": 1.5,
        "share": 0.25,
        "seconds_left": 270.0,
        "steps_per_second": 1.1,
        "samples_per_second": 70.4,
        "values": {"main/loss": 0.512, "main/accuracy": 0.9},
        "n_counted": 10,
        "now": USUAL,
        "usual": USUAL,
        "slowness": {"computing": 1.0, "between": 1.0},
        "longer": ["computing", "between"],
        "memory": 2.0**30,
    }
    return RankStatus(**{**given, **changes})


def make_run(run: Path, n_ranks: int = 3, **changes) -> Path:
    """Writes the folder of a run that was started twice, and returns it."""
    folder = make_folder(run)
    for rank in range(n_ranks):
        status(rank, n_ranks, **changes).write(folder)
    about = {"cuts": [0, 3, 6, 9], "versions": "divisible 0", "n_ranks": n_ranks}
    text = "9 layers in 3 stages on 3 ranks\nstage  rank"
    add_to_journal(folder, "start", text, STARTED - 100.0, step=0, **about)
    lost = [{"name": "zb_h1", "seconds": 1.5, "reason": "slower <than> 1f1b"}]
    more = {"plan": "the plan's table", "alternatives": lost}
    add_to_journal(folder, "start", text, STARTED, step=40, **about, **more)
    entries = [
        {"main/loss": 1.0 / i, "validation/main/loss": 1.1 / i, "iteration": 10 * i}
        for i in range(1, 5)
    ]
    (run / "log").write_text(json.dumps(entries), encoding="utf-8")
    line = {
        "time": STARTED - 1,
        "event": "end",
        "kind": "lost",
        "reason": "rank 1 died",
    }
    (run / "supervisor.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    Timeline(
        [(0, "0F0", 0, 1), (1, "1F0", 1, 2), (1, "1B0", 2, 4), (0, "0B0", 4, 6)]
    ).save(run / "timeline_100.json")
    return run
