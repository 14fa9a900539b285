"""Runs a script, and records the losses and times of its steps.

    python -m benchmarks.old_repositories.recording SETTINGS.json

Each call of ``Variable.backward`` is a step: the sum of the array that it starts from
is the loss. After so many steps the process ends. The script itself is not changed.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
import time
from pathlib import Path


class Enough(BaseException):
    """All steps were recorded. No script catches it as an ``Exception``."""


class Recorder:
    """Losses and times of steps.

    Args:
        steps (int): Steps to record.
        nudge (float): Noise of all gradients, as part of the largest number of each,
            and of initial parameters, as part of each number. It shows how much
            rounding matters: sums of products in another order differ by as much.
        draw (int): Seed of the noise.
    """

    def __init__(self, steps: int, nudge: float = 0.0, draw: int = 0) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []
        self.has_ended = False
        self._steps = steps
        self._nudge = nudge
        self._draw = draw
        self._process = os.getpid()

    def install(self) -> None:
        """Records what ``Variable.backward`` is called for, from now on."""
        import chainer

        original = chainer.Variable.backward

        def backward(variable, *args, **kwargs):
            # Workers of an iterator may train nothing; if they do, it is their own.
            if os.getpid() != self._process:
                return original(variable, *args, **kwargs)
            self.step(variable)
            original(variable, *args, **kwargs)
            if self._nudge:
                self._change_gradients()

        chainer.Variable.backward = backward
        if self._nudge:
            self._nudge_initial_parameters(chainer.Parameter)

    def _nudge_initial_parameters(self, parameter: type) -> None:
        import numpy as np

        own = np.random.RandomState(self._draw)
        original = parameter.initialize

        def initialize(param, shape):
            original(param, shape)
            if param.dtype.kind == "f":
                noise = own.uniform(-self._nudge, self._nudge, shape)
                param.array *= (1 + noise).astype(param.dtype)

        parameter.initialize = initialize

    def step(self, variable) -> None:
        """Records a step.

        Raises:
            Enough: If all have been recorded.
        """
        self.times.append(time.perf_counter())
        if len(self.losses) == self._steps:
            self.has_ended = True
            raise Enough
        self.losses.append(float(variable.array.sum()))

    def _change_gradients(self) -> None:
        import gc

        import chainer
        import numpy as np

        own = np.random.RandomState([len(self.losses), self._draw])
        for each in gc.get_objects():
            # A weak reference would be asked for the class of what is gone.
            if issubclass(type(each), chainer.Parameter) and each.grad is not None:
                size = self._nudge * abs(each.grad).max(initial=0.0)
                # Chainer fills gradients that were never computed with NaN.
                if np.isfinite(size):
                    noise = own.uniform(-size, size, each.shape).astype(each.dtype)
                    each.grad = each.grad + noise


def main() -> None:
    """Runs the script of the settings, and writes what was recorded."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    script, *arguments = settings["arguments"]
    recorder = Recorder(settings["steps"], settings["nudge"], settings.get("draw", 0))
    recorder.install()
    seed = settings["seed"]
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    # Games take the seeds of their random generators from it.
    os.urandom = random.Random(seed).randbytes
    # Each copy of a folder may list its files in another order.
    listed = os.listdir
    os.listdir = lambda path=".": sorted(listed(path))
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    # A driver of ours lies elsewhere, and its model here.
    sys.path[1:1] = [os.getcwd()] * (sys.path[0] != os.getcwd())
    try:
        runpy.run_path(script, run_name="__main__")
    except (Enough, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code not in (None, 0):
            raise
    except Exception:
        # A bare "except:" of the script may catch the end, and fail.
        if not recorder.has_ended:
            raise
    finally:
        record = {"losses": recorder.losses, "times": recorder.times}
        Path(settings["output"]).write_text(json.dumps(record))
    sys.stdout.flush()
    # Threads and workers of the script would wait for more steps.
    os._exit(0)


if __name__ == "__main__":
    main()
