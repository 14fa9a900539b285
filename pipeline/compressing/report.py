"""The report of a compression by trying: a table, a picture, a plan."""

from __future__ import annotations

from chainer_kernels.text_table import text_table
from divisible.planning.units import format_bytes
from divisible.terminal_text import printable
from model_compression.budgets import Budget
from model_compression.pictures import plot_rounds
from model_compression.rules import Prune
from model_compression.sensitivity_table import Sensitivity
from pipeline.compressing.journal import Journal


def write_report(journal: Journal, budget: Budget) -> str:
    """Writes ``report.txt``, ``report.png`` and ``plan.json``, and returns the text.

    Args:
        journal: The state of a session that has ended.
        budget: Its budget.
    """
    table = Sensitivity.load(journal.table)
    text = report(journal, table, budget)
    (journal.folder / "report.txt").write_text(text + "\n", encoding="utf-8")
    if journal.best is not None:
        journal.plan(journal.best).save(journal.folder / "plan.json")
    whole = sum(table.sizes.values())
    plot_rounds(
        [
            (sum(each.bytes.values()) / whole, each.metric, each.is_kept)
            for each in journal.rounds
        ],
        journal.base,
        budget.limit(journal.base),
        journal.metric,
        _sizes(journal, table),
        journal.folder / "report.png",
    )
    return text


def report(journal: Journal, table: Sensitivity, budget: Budget) -> str:
    """Returns the layers, the rounds, and what came of them, as text."""
    whole = sum(table.sizes.values())
    parts = [_layers(journal, table)] if journal.best is not None else []
    parts.append(_rounds(journal, whole))
    if journal.best is None:
        parts.append(f"nothing was kept within {budget}")
        return "\n\n".join(parts)
    best = journal.rounds[journal.best - 1]
    size = sum(best.bytes.values())
    goal = "as wanted" if best.way >= 1 else "not as little as wanted"
    if journal.settings.n_bytes is None and journal.settings.time is None:
        goal = "the least that the trials have" if best.way >= 1 else "the least kept"
    took = f"an evaluation takes {best.took:.2f} of its time before"
    parts.append(
        f"{printable(journal.metric)} {best.metric:.4g} after {journal.base:.4g},"
        f" budget {budget}; {format_bytes(size)} of {format_bytes(whole)},"
        f" {size / whole:.3f}: {goal}; {took}\n"
        f"weights {printable(journal.weights(journal.best).name)}, plan plan.json"
    )
    return "\n\n".join(parts)


def _layers(journal: Journal, table: Sensitivity) -> str:
    """Returns the table of the layers of the best round."""
    best = journal.rounds[journal.best - 1]
    rules = {rule.layers[0]: rule for rule in journal.plan(journal.best).rules}
    alone = {(t.layer, t.method, t.degree): t.metric for t in table.trials}
    rows = [("layer", "method", "degree", "bytes", "after", "metric of it alone")]
    for layer, size in table.sizes.items():
        rule = rules.get(layer)
        cells = ("", "", f"{size:,}", f"{best.bytes[layer]:,.0f}", "")
        if rule is not None:
            degree = rule.to if isinstance(rule, Prune) else 0.0
            words = f"{degree:.0%} zero" if degree else f"{rule.bits} bits"
            metric = alone[layer, rule.method, degree]
            cells = (rule.method, words, *cells[2:4], f"{metric:.4g}")
        rows.append((layer, *cells))
    return text_table([[printable(cell) for cell in row] for row in rows], left=(0, 1))


def _rounds(journal: Journal, whole: float) -> str:
    """Returns the table of the rounds."""
    rows = [("round", "goal", "bytes", "of dense", "time", "metric", "")]
    for number, each in enumerate(journal.rounds, 1):
        size = sum(each.bytes.values())
        metric = "not finite" if each.metric is None else f"{each.metric:.4g}"
        word = "kept" if each.is_kept else "not kept"
        part = f"{size / whole:.3f}"
        goal = "" if each.goal is None else f"{each.goal:,.0f}"
        took = f"{each.took:.2f}"
        rows.append((str(number), goal, f"{size:,.0f}", part, took, metric, word))
    return text_table(rows, left=(6,))


def _sizes(journal: Journal, table: Sensitivity) -> dict[str, tuple[float, float]]:
    """Returns the bytes of each layer before and after the best round."""
    if journal.best is None:
        return {layer: (size, size) for layer, size in table.sizes.items()}
    after = journal.rounds[journal.best - 1].bytes
    return {layer: (size, after[layer]) for layer, size in table.sizes.items()}
