"""Prints who computes what on this machine, and how fast.

python -m chainer_kernels
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from llvmlite import binding
from rich.console import Console
from rich.table import Table
from rich.text import Text

import chainer_kernels
from chainer_kernels import (
    code_cache,
    kept_weights,
    memory,
    providers,
    speed,
    switch,
    whole_numbers,
)
from chainer_kernels.all_loops import compile_all
from chainer_kernels.catalogue import CATALOGUE
from chainer_kernels.functions import gpu_choice
from chainer_kernels.providers import cudnn
from chainer_kernels.threads import blas_threads


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--speed/--no-speed",
    "with_speed",
    default=True,
    help="Whether to time some operators.  [default: speed]",
)
@click.option(
    "--compile",
    "compile_",
    is_flag=True,
    help="Compile all loops into the cache, and end.",
)
def main(with_speed: bool, compile_: bool) -> None:
    """Prints who computes what on this machine, and how fast."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if compile_:
                _compile()
                return
            _print_table((), _facts().items(), left=(0, 1))
            _say("")
            _print_table(("in Chainer", "by", "kernel"), _rows(), left=(0, 1, 2))
            if with_speed:
                _say("\nforward and backward")
                _print_speed()
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        finally:
            for warning in caught:
                _say(f"warning: {warning.message}", to_errors=True)


def _compile() -> None:
    _say("compiling all loops that are not on disk yet, which may take minutes")
    start = time.perf_counter()
    loops = compile_all()
    seconds = time.perf_counter() - start
    n_found = sum(bool(each.compiled.stats.cache_hits) for each in loops)
    _say(
        f"{len(loops)} loops in {seconds:.1f} s, of which {n_found} had been compiled;"
        f" {_cache()}"
    )


def _facts() -> dict[str, str]:
    """Returns what is said of the whole."""
    provider = providers.active()
    is_on = chainer_kernels.is_enabled()
    return {
        "kernels": "in force" if is_on else "not in force: CHAINER_KERNELS is 0",
        "provider": f"{provider.NAME} ({provider.version()})",
        "on a GPU": f"{cudnn.NAME} ({cudnn.version()})"
        if gpu_choice.has_cudnn()
        else "Chainer's own arithmetic",
        "products": f"in {switch.products_in_force()}",
        "bfloat16 products": providers.bfloat16_instructions()
        or "no instructions: operands are rounded, and multiplied in float32",
        "8-bit products": whole_numbers.instructions()
        or f"none: they need oneDNN, and {', '.join(whole_numbers.INSTRUCTIONS)}",
        "processor": binding.get_host_cpu_name(),
        "threads": str(blas_threads()),
        "compiled": _cache(),
        "memory": "freed arrays are kept for new ones"
        if memory.keep_freed()
        else "as the C library wants, for it is not GNU's",
        "prepared weights": f"up to {kept_weights.most_bytes() / 1e6:.0f} MB are kept"
        f" in a scope, {kept_weights.COPIES} copies of each weight",
    }


def _cache() -> str:
    """Returns where compiled loops are kept."""
    folder = code_cache.cache_directory()
    if folder is None:
        return "kept nowhere"
    n_bytes = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    return f"{n_bytes / 1e6:.1f} MB in {folder}"


def _rows() -> Iterable[Sequence[str]]:
    """Generates the rows of the catalogue."""
    provider = providers.active().NAME
    has_cudnn = gpu_choice.has_cudnn()
    for entry in CATALOGUE:
        by = entry.by.format(provider=provider)
        if not has_cudnn:
            on_cpu, _, _ = by.partition(cudnn.NAME)
            by = on_cpu.rstrip("; ") or f"Chainer, without {cudnn.NAME}"
        yield entry.label, by, entry.kernel


def _print_speed() -> None:
    rows = [
        (
            name,
            f"{stock * 1e3:.2f}",
            f"{kernels * 1e3:.2f}",
            f"{kernels / stock:.2f}",
        )
        for name, stock, kernels in speed.measure()
    ]
    _print_table(("operator", "Chainer ms", "kernels ms", "ratio"), rows, left=(0,))
    narrow = [
        (name, f"{single * 1e3:.2f}", f"{narrow * 1e3:.2f}", f"{narrow / single:.2f}")
        for name, single, narrow in speed.measure_products()
    ]
    _say("\nforward and backward, products in float32 and in bfloat16")
    _print_table(("operator", "float32 ms", "bfloat16 ms", "ratio"), narrow, left=(0,))


def _print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int]
) -> None:
    """Prints a table; numbers stand at the right."""
    table = Table(box=None, show_header=bool(columns))
    rows = [tuple(map(Text, row)) for row in rows]
    for i in range(len(rows[0])):
        header = Text(columns[i]) if columns else ""
        table.add_column(header, "", justify="left" if i in left else "right")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _say(text: str, to_errors: bool = False) -> None:
    _console(to_errors).print(text, markup=False, soft_wrap=True)


def _console(to_errors: bool = False) -> Console:
    # Rows are cut off where there is no terminal to tell its width.
    console = Console(stderr=to_errors, highlight=False)
    return (
        console
        if console.is_terminal
        else Console(stderr=to_errors, highlight=False, width=160)
    )


if __name__ == "__main__":
    main(prog_name="python -m chainer_kernels")
