"""The table of the paper's findings, each looked for in every campaign."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper_tables import (
    input_size_findings,
    model_findings,
    perceptron_findings,
)
from benchmarks.paper_tables.campaigns import Campaign
from benchmarks.paper_tables.finding import TOLERANCE, Measured

FINDINGS = (
    *perceptron_findings.FINDINGS,
    *input_size_findings.FINDINGS,
    *model_findings.FINDINGS,
)
COLUMNS = (
    "finding of the paper",
    "where",
    "the paper's number",
    "measured with",
    "here",
    "reproduced",
    "why",
)


def section(campaigns: Sequence[Campaign]) -> list[str]:
    """Returns the section of the page with the table.

    Args:
        campaigns: All campaigns; a finding has a line for each that has its points.
    """
    lines = []
    for finding in FINDINGS:
        for campaign in campaigns:
            result = finding.check(Measured(campaign.rows.values()))
            if result is not None:
                cells = (
                    finding.text,
                    finding.place,
                    finding.paper,
                    campaign.title,
                    result.here,
                    "yes" if result.is_reproduced else "no",
                    result.why,
                )
                lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    return [
        "",
        "## Findings of the paper",
        "",
        "Every cell but the first three is computed from the points. VGG16 and ResNet50"
        " are measured as in the paper, or with equal layers and 1F1B where that was"
        " not measured. Numbers that differ by"
        f" {TOLERANCE:.0%} at most count as the same. Equation (2) is the paper's model"
        " of a pipeline with equal stages and without messages.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *lines,
    ]
