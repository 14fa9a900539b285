"""``divisible port``: a training script rewritten for a pipeline."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import click

from divisible.files import written_aside
from pipeline.command_line import console, options
from pipeline.porting.catalogue import RULES
from pipeline.porting.findings import Finding
from pipeline.porting.neighbours import sources
from pipeline.porting.porting import port

#: Exit code if something stands in the way.
NOT_PORTED = 3


def _print_rules(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        rows = [
            (rule.noun, *(text.replace("``", "") for text in (rule.finds, rule.writes)))
            for rule in RULES
        ]
        console.print_table(
            ["noun", "finds", "writes"], rows, left=(0, 1, 2), last_wraps=True
        )
        context.exit()


@click.command("port")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.  [default: SCRIPT_pipeline.py, beside SCRIPT]",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--show", is_flag=True, help="Show the difference, and write nothing.")
@click.option(
    "--rules",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_rules,
    help="List what is found and what is written, and exit.",
)
@options.speaking
def port_command(script: Path, output: Path | None, force: bool, show: bool) -> None:
    """Rewrites a training script of Chainer for a pipeline.

    SCRIPT is read, and not run. Each place that changes is listed with its line, the
    reason and the page of the documentation. A copy is written beside SCRIPT, and the
    difference is shown. If something stands in the way, nothing is written, and the
    exit code is 3.
    """
    output = output or script.with_name(f"{script.stem}_pipeline.py")
    if output.exists() and not (force or show):
        raise click.UsageError(f"{output} exists: give --force or another --output")
    try:
        # An editor may have put a mark before the text.
        source = script.read_bytes().decode("utf-8-sig")
        others = sources(script)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{script} is not in UTF-8: {error}") from None
    ported = port(source, others)
    if ported.text is not None and not show:
        # Written before it is shown: "| head" closes the pipe, which ends the command.
        with written_aside(output) as aside:
            Path(aside).write_bytes(ported.text.encode())
    for finding in ported.findings:
        if finding.text:
            _say(script, finding)
    if ported.text is None:
        n = len(ported.obstacles)
        places = "One place stands" if n == 1 else f"{n} places stand"
        console.say(f"\n{places} in the way, and nothing was written.")
        sys.exit(NOT_PORTED)
    difference = difflib.unified_diff(
        source.splitlines(keepends=True),
        ported.text.splitlines(keepends=True),
        str(script),
        str(output),
    )
    console.say("\n" + "".join(difference))
    if show:
        return
    console.say(f"written to {output}; run mpiexec -n 2 divisible run {output}")


def _say(script: Path, finding: Finding) -> None:
    mark = "cannot be ported: " if finding.is_obstacle else ""
    page = f" (docs/{finding.page}.rst)" if finding.page else ""
    console.say(f"{script}:{finding.line}: {mark}{finding.text}{page}")
