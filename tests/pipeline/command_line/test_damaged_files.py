"""Files that were damaged, or made to do harm: no traceback, no hang, no code run.

Nor does a character of them control the terminal.
"""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import unicodedata
import warnings
from pathlib import Path
from random import Random

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer, extensions
from click.testing import CliRunner
from mpi4py import MPI

from divisible import Divisible, LayerCost, Plan, Profile, simulate
from divisible.schedules import Costs, one_f_one_b
from model_compression import (
    CompressionPlan,
    Prune,
    Quantize,
    Sensitivity,
    apply,
    load_applied,
    sensitivity,
)
from model_compression.pictures import plot_progress
from pipeline import (
    Pipeline,
    PipelineUpdater,
    SnapshotError,
    latest_snapshot,
    load_snapshot,
    save_snapshot,
)
from pipeline.command_line.main import main
from pipeline.rebalancing.log import LoggedCheck
from pipeline.snapshots.files import checksum
from pipeline.snapshots.names import MANIFEST
from tests.support.damaged_files import (
    ESCAPES,
    damaged_json,
    damaged_lines,
    damaged_npz,
    damaged_text,
)
from tests.support.matrix import matrix

# A busy machine is slow; what counts to 10**10 is slower.
SECONDS, MORE_MEMORY = 60, 4 << 30
#: With channels that go, codebooks, and ranges of activations.
APPLIED = CompressionPlan(
    [
        Prune("l2", layers="/0", to=0.5, granularity="channel"),
        Quantize("int4", layers="/0", targets=("weight", "bias", "input")),
        Quantize("codebook2", layers="/2"),
    ]
)
SAMPLES = [(np.full(4, i, np.float32), np.int32(i % 2)) for i in range(4)]


def undivided():
    return Divisible(L.Linear(4, 3), L.BatchNormalization(3), L.Linear(3, 2))


class Run:
    """A small training run, whose files are damaged."""

    def __init__(self, out):
        np.random.seed(0)
        self.out = out
        self.model = undivided()
        self.optimizer = chainer.optimizers.Adam().setup(self.model)
        self.pipe = Pipeline(self.model, MPI.COMM_SELF, n_microbatches=2)
        iterator = chainer.iterators.SerialIterator(SAMPLES, 4)
        updater = PipelineUpdater(iterator, self.optimizer, self.pipe)
        self.trainer = Trainer(updater, (2, "iteration"), str(out))
        self.trainer.extend(extensions.LogReport(trigger=(1, "iteration")))

    def save(self, path):
        save_snapshot(path, self.pipe, self.optimizer, state={"trainer": self.trainer})

    def load(self, path, strict=True):
        state = {"trainer": self.trainer}
        load_snapshot(path, self.pipe, self.optimizer, state=state, strict=strict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a good file of each kind."""
    folder = tmp_path_factory.mktemp("good")
    run = Run(folder)
    run.trainer.run()
    run.save(folder / "snapshot")
    layers = [
        LayerCost(0.1 * i, 0.1, 0.1, 40, name=f"L{i}", place="a.py") for i in (1, 2, 3)
    ]
    Profile(layers, n_samples=2, machine="a host").save(folder / "profile.json")
    Plan([0, 1, 3], 2, "1f1b", layers=["L1", "L2", "L3"]).save(folder / "plan.json")
    # With the conditions that it was made for.
    options = f"--ranks 2 --speeds 1,0.5 --batch 8 -o {folder}/made.json"
    assert command(folder, f"plan GOOD/profile.json {options}").exit_code == 0
    simulate(one_f_one_b(2, 2), Costs(1, 1, 1)).save(folder / "timeline.json")
    for i in range(1, 9):
        speeds = [1.0 if i < 5 else 0.2, 1.0]
        moved = {"layers": [1], "bytes": 10, "seconds": 0.1} if i == 5 else None
        new = [0, 1, 3] if moved else None
        LoggedCheck(
            20 * i, 1.0, ["a", "b"], speeds, [0, 2, 3], new, 1.0, 0.9, "why", moved
        ).append_to(folder / "rebalancing.jsonl")
    chainer.serializers.save_npz(folder / "model.npz", run.model)
    chainer.serializers.save_npz(folder / "trainer.npz", run.trainer)
    found = sensitivity(
        run.model, lambda model: 0.5, methods=["l2", "int8"], degrees=[0.5]
    )
    found.save(folder / "sensitivity.json")
    rules = [Prune("l2", layers="/0", to=0.5), Quantize("int8", layers="/2")]
    CompressionPlan(rules).save(folder / "compression.json")
    chainer.serializers.save_npz(folder / "small.npz", apply(undivided(), APPLIED))
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A run into which snapshots are loaded."""
    return Run(tmp_path_factory.mktemp("target"))


@contextlib.contextmanager
def limited():
    """Ends a block that takes too long, or too much memory."""

    def expire(number, frame):
        pytest.fail(f"nothing for {SECONDS} s")

    before = signal.signal(signal.SIGALRM, expire)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_text(text):
    for character in set(text) - {"\n"}:
        kind = unicodedata.category(character)
        assert kind not in ("Cc", "Cf", "Cs", "Zl", "Zp"), (character, text)


def command(folder, line):
    """Runs a command; it ends well, or with an error in words."""
    words = [word.replace("GOOD", str(folder)) for word in line.split()]
    result = CliRunner().invoke(main, words)
    check_text(result.output)
    if result.exception is not None:
        assert isinstance(result.exception, SystemExit), result.exception
        assert "Error: " in result.output
    return result


def call(function, *arguments):
    """Calls a function, which may refuse a file; returns whether it did."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function(*arguments)
        except (OSError, SnapshotError, ValueError) as error:
            check_text(str(error))
    for warning in caught:
        check_text(str(warning.message))


def by_commands(*lines):
    def use(folder, bad, target):
        for line in lines:
            command(folder, line.replace("BAD", str(bad)))

    return use


def use_snapshot(folder, bad, target):
    call(latest_snapshot, bad.parent)
    call(target.load, bad)
    call(target.load, bad, False)
    command(folder, f"export {bad} -o {bad.parent}/exported.npz")
    command(folder, f"repartition {bad} --stages 2 -o {bad.parent}/2")


def use_sensitivity(folder, bad, target):
    call(lambda: check_text(str(Sensitivity.load(bad))))


def use_compression(folder, bad, target):
    call(lambda: check_text(str(CompressionPlan.load(bad))))


def use_applied(folder, bad, target):
    call(load_applied, bad, undivided(), APPLIED)


def use_log(folder, bad, target):
    call(plot_progress, bad, "main/loss", bad.with_name("log.svg"))


def damaged_manifest(text, random):
    """Returns a manifest of somebody who knows how it is checked."""
    content = damaged_json(json.loads(text), random)
    if isinstance(content, dict):
        content.pop("sha256", None)
        content["sha256"] = checksum(content)
    return json.dumps(content).encode()


def damaged_stage(folder, random, marker):
    """Damages the arrays of a snapshot, and makes its checksums fit."""
    name = random.choice(["stage-0.npz", "common.npz"])
    data = damaged_npz((folder / name).read_bytes(), random, marker)
    (folder / name).write_bytes(data)
    content = json.loads((folder / MANIFEST).read_text())
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content["files"][name] = entry
    del content["sha256"]
    content["sha256"] = checksum(content)
    (folder / MANIFEST).write_text(json.dumps(content))


PLANS = by_commands(
    "simulate BAD GOOD/profile.json --batch 4",
    "simulate BAD GOOD/profile.json",
    "repartition GOOD/snapshot --plan BAD -o BAD.snapshot",
    "explore BAD GOOD/profile.json -o BAD.html",
)
PROFILES = by_commands(
    "plan BAD --stages 2 -o BAD.plan",
    # A search through all schedules reads no more of the file.
    "plan BAD --ranks 2 --batch 8 --schedule 1f1b --recompute never -o BAD.plan",
    "simulate GOOD/plan.json BAD",
    "explore BAD -o BAD.html",
)
TIMELINES = by_commands(
    "timeline BAD",
    "timeline GOOD/timeline.json --against BAD",
    "explore BAD -o BAD.html",
)
IMPORTS = by_commands("import BAD", "import BAD -o BAD.layers")
KINDS = {
    "profile.json": (damaged_text, PROFILES),
    "plan.json": (damaged_text, PLANS),
    "made.json": (damaged_text, by_commands("simulate BAD", "simulate BAD --batch 4")),
    "timeline.json": (damaged_text, TIMELINES),
    "rebalancing.jsonl": (damaged_lines, by_commands("stragglers BAD")),
    "model.npz": (damaged_npz, IMPORTS),
    "trainer.npz": (damaged_npz, IMPORTS),
    "sensitivity.json": (damaged_text, use_sensitivity),
    "compression.json": (damaged_text, use_compression),
    "small.npz": (damaged_npz, use_applied),
    "log": (damaged_text, use_log),
    "snapshot/manifest.json": (damaged_manifest, use_snapshot),
    "snapshot/stage-0.npz": (damaged_stage, use_snapshot),
}


def try_damages(folder, target, tmp_path, name, seeds):
    """Damages a file by each seed, and uses it."""
    damage, use = KINDS[name]
    marker = tmp_path / "code was run"
    for seed in seeds:
        random, place = Random(f"{name} {seed}"), tmp_path / str(seed)
        place.mkdir()
        bad = place / name.partition("/")[0]
        if damage in (damaged_manifest, damaged_stage):
            shutil.copytree(folder / "snapshot", bad)
        if damage is damaged_stage:
            damaged_stage(bad, random, marker)
        elif damage is damaged_manifest:
            text = (bad / MANIFEST).read_text()
            (bad / MANIFEST).write_bytes(damaged_manifest(text, random))
        elif damage is damaged_npz:
            data = (folder / name).read_bytes()
            bad.write_bytes(damaged_npz(data, random, marker))
        else:
            bad.write_bytes(damage((folder / name).read_text(), random))
        with limited():
            use(folder, bad, target)
        assert not marker.exists()
        shutil.rmtree(place)


@pytest.mark.parametrize("name", KINDS)
def test_damages(folder, target, tmp_path, name):
    try_damages(folder, target, tmp_path, name, range(15))


def with_escapes(content):
    """Yields a content again and again, each time with escapes in another text."""
    keys = content if isinstance(content, dict) else range(len(content))
    for key in list(keys):
        inner = content[key]
        if isinstance(inner, str):
            content[key] = inner + ESCAPES
            yield content
        elif isinstance(inner, (dict, list)):
            for _ in with_escapes(inner):
                yield content
        content[key] = inner


@pytest.mark.parametrize("most", [8, *matrix(10**6)])
@pytest.mark.parametrize("name", [n for n in KINDS if KINDS[n][0] is damaged_text])
def test_escapes_in_every_text(folder, target, tmp_path, name, most):
    _, use = KINDS[name]
    content = json.loads((folder / name).read_text())
    texts = {json.dumps(each) for each in with_escapes(content)}
    assert texts or name == "log"
    for text in sorted(texts)[:: -(-len(texts) // most) or 1]:
        (tmp_path / name).write_text(text)
        with limited():
            use(folder, tmp_path / name, target)


def test_escapes_in_hosts_and_keys(folder, tmp_path):
    lines = (folder / "rebalancing.jsonl").read_text().splitlines()
    checks = [json.loads(line) for line in lines]
    for check in checks:
        check["hosts"] = [host + ESCAPES for host in check["hosts"]]
    text = "\n".join(map(json.dumps, checks))
    (tmp_path / "log").write_text(text)
    result = command(folder, f"stragglers {tmp_path}/log")
    # The case in which nothing is escaped would be no test.
    assert r"a\x1b]0;title\x07\x1b[2J\x9b31m\u202e" in result.output
    np.savez(tmp_path / "w.npz", **{f"0/W{ESCAPES}": np.ones(3)})
    assert r"0/W\x1b]0" in command(folder, f"import {tmp_path}/w.npz").output


def test_a_pipe_in_a_folder_is_passed_over(folder, tmp_path):
    shutil.copy(folder / "timeline.json", tmp_path)
    os.utime(tmp_path / "timeline.json", (1, 1))
    # Newer than the timeline; nobody writes to it.
    os.mkfifo(tmp_path / "pipe.json")
    with limited():
        result = command(folder, f"timeline {tmp_path}")
    assert result.output.startswith(f"{tmp_path}/timeline.json\n")


@pytest.mark.matrix
@pytest.mark.parametrize("name", KINDS)
def test_many_damages(folder, target, tmp_path, name):
    try_damages(folder, target, tmp_path, name, range(15, 1015))
