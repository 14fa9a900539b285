"""A training run as small as it may be, to save and to load many times."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import chainer
import chainer.links as L
import numpy as np
from chainer.iterators import SerialIterator
from chainer.training import Trainer

from divisible import Divisible, Plan
from pipeline import (
    Pipeline,
    PipelineUpdater,
    load_snapshot,
    save_snapshot,
    snapshot,
    wait_for_snapshot,
)

X, T = np.ones((4, 3), np.float32), np.zeros(4, np.int32)


class SmallRun:
    """Two layers, on one rank or on two."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        np.random.seed(1)
        model = Divisible(L.Linear(3, 4), L.Linear(4, 2))
        self.stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
        self.optimizer = chainer.optimizers.MomentumSGD().setup(self.stage)
        self.pipe = Pipeline(self.stage, comm, n_microbatches=2, timeout=20)
        iterator = SerialIterator(list(zip(X, T)), 2) if self.pipe.is_first else None
        updater = PipelineUpdater(iterator, self.optimizer, self.pipe)
        self.trainer = Trainer(updater)
        # As if it ran: what is loaded takes effect at once.
        self.trainer._start_at = time.time()
        self.step()

    def step(self) -> float:
        loss = self.pipe.step(X, T)["loss"]
        self.optimizer.update()
        return loss

    def evaluate(self) -> float:
        return self.pipe.evaluate(X, T)["loss"]

    def save(self, path: Path, tag: str, **options: Any) -> None:
        """Saves, and waits until it is saved."""
        values = {"tag": tag}
        state = {"trainer": self.trainer}
        save_snapshot(
            path, self.pipe, self.optimizer, state=state, values=values, **options
        )
        wait_for_snapshot(self.pipe)

    def load(self, path: Path) -> None:
        load_snapshot(path, self.pipe, self.optimizer, state={"trainer": self.trainer})

    def copy(self, tag: str) -> None:
        """Copies the run to memory, and waits until the copy is whole."""
        copies, state = self.pipe.copies, {"trainer": self.trainer}
        copies.save(self.optimizer, state=state, values={"tag": tag})
        copies.wait()

    def load_copy(self) -> str | None:
        """Loads the newest copy in memory, and returns its tag, if there is one."""
        state = {"trainer": self.trainer}
        found = self.pipe.copies.load(self.optimizer, state=state)
        return None if found is None else found.values["tag"]

    def resume(self, out: Path) -> str | None:
        """Returns the name of the snapshot that resume='auto' has chosen."""
        extension = snapshot("s_{.updater.iteration}", resume="auto")
        self.trainer.out = str(out)
        extension.initialize(self.trainer)
        found = extension.resumed_from
        return None if found is None else found.name

    def arrays(self) -> list[bytes]:
        """Returns the bytes of what is trained."""
        params = list(self.stage.params())
        arrays = [param.array for param in params]
        for param in params:
            arrays += (param.update_rule.state or {}).values()
        return [array.tobytes() for array in arrays]

    def change(self) -> None:
        """Changes what a load is to set right."""
        for param in self.stage.params():
            param.array += 1
