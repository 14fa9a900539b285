"""ChainerMN's everyday functions under mpiexec."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("chainermn_line.py")
DEADLINE_S = 120


@pytest.mark.parametrize("ranks", [2, 3])
def test_chainermn(ranks):
    mpiexec = Path(sys.executable).with_name("mpiexec")
    process = subprocess.Popen(
        [
            str(mpiexec) if mpiexec.exists() else "mpiexec",
            *("-n", str(ranks), sys.executable, str(SCRIPT)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=DEADLINE_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        pytest.fail(f"still running:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    assert output.split()[-1] == "observations", output
