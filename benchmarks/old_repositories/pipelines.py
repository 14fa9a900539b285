"""Public models as pipelines on two ranks, against themselves undivided.

python -m benchmarks.old_repositories.pipelines DIR
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.common.results import Result, command, machine
from benchmarks.old_repositories.arguments import (
    found_in,
    is_chosen,
    parser_of,
    write_left_out,
)
from benchmarks.old_repositories.environments import environment
from benchmarks.old_repositories.model_table import MODELS
from benchmarks.old_repositories.models import Model
from benchmarks.old_repositories.processes import (
    copied,
    last_line,
    run_process,
    variables,
)


def row(model: Model, arguments) -> str:
    """Runs a model on two ranks; returns its line."""
    name = model.expression.split("(")[0]
    head = f"{model.repository:42} {name:20} {model.kind:20}"
    places = arguments.environments
    python, failure = environment(places, model.needs, arguments.timeout)
    if failure:
        return f"{head} not installed: {failure}"
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(model, arguments.trees, Path(folder, model.name))
        output, settings = Path(folder, "record.json"), Path(folder, "settings.json")
        fields = {**model._asdict(), "output": str(output)}
        settings.write_text(json.dumps(fields))
        launcher = Path(sys.executable).parent / "mpiexec"
        line = [launcher if launcher.exists() else "mpiexec", "-n", "2", python, "-W"]
        line += ["ignore", "-m", "benchmarks.old_repositories.on_two_ranks", settings]
        # The MPI library lies beside this project's packages.
        libraries = f"{sys.prefix}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
        modes = {"CHAINER_COMPAT": model.modes, "LD_LIBRARY_PATH": libraries}
        own = variables(Path(folder), modes)
        status, text = run_process(line, tree / model.folder, own, arguments.deadline)
        if status or not output.exists():
            if arguments.show:
                print(text)
            return f"{head} stopped: {last_line(text, status)}"
        record = json.loads(output.read_text())
    pairs = zip(record["serial"], record["pipeline"])
    apart = max(abs(a - b) / abs(a) for a, b in pairs)
    agree = "equal" if apart == 0 else f"{apart:.0e}"
    return f"{head} {record['layers']:4} layers, losses {agree}"


def main() -> None:
    """Runs all models and writes the result."""
    parser = parser_of(__doc__, "models")
    parser.add_argument(
        "--deadline", type=float, default=300, help="seconds of a model"
    )
    arguments = parser.parse_args()
    wanted = [each for each in MODELS if is_chosen(arguments.only, each.repository)]
    there = found_in(wanted, parser, arguments.trees)
    result = Result("old_repositories_pipelines", arguments.output)
    result.write(command(), machine("chainer", "numpy"), "")
    write_left_out(result, wanted, there)
    with tempfile.TemporaryDirectory() as folder:
        arguments.environments = arguments.environments or Path(folder)
        for model in there:
            result.write(row(model, arguments))
    result.save()


if __name__ == "__main__":
    main()
