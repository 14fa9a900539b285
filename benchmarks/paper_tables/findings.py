"""The table of the paper's findings: each claim checked in every campaign."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.findings import Finding, as_markdown
from benchmarks.paper_tables import (
    input_size_findings,
    model_findings,
    perceptron_findings,
)
from benchmarks.paper_tables.campaigns import Campaign
from benchmarks.paper_tables.claim import TOLERANCE, Measured

CLAIMS = (
    *perceptron_findings.CLAIMS,
    *input_size_findings.CLAIMS,
    *model_findings.CLAIMS,
)


def section(campaigns: Sequence[Campaign]) -> list[str]:
    """Returns the section of the page with the table.

    Args:
        campaigns: All campaigns; a claim has a line for each that has its points.
    """
    found = []
    for claim in CLAIMS:
        for campaign in campaigns:
            result = claim.check(Measured(campaign.rows.values()))
            if result is not None:
                text = f"Section {claim.place}: {claim.text}"
                found.append(Finding(text, claim.paper, *result, campaign.title))
    if not found:
        return []
    return [
        "",
        "## Findings of the paper",
        "",
        "Every cell but the first two is computed from the points. VGG16 and ResNet50"
        " are measured as in the paper, or with equal layers and 1F1B where that was"
        " not measured. Numbers that differ by"
        f" {TOLERANCE:.0%} at most count as the same. Equation (2) is the paper's model"
        " of a pipeline with equal stages and without messages.",
        "",
        *as_markdown(found),
    ]
