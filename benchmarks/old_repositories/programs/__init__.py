"""The programs, by what their networks are for."""

from benchmarks.old_repositories.programs import (
    classification,
    decisions,
    generation,
    graphs,
    language,
    pictures,
)

#: All programs, in the order of the table.
PROGRAMS = (
    *classification.PROGRAMS,
    *pictures.PROGRAMS,
    *generation.PROGRAMS,
    *language.PROGRAMS,
    *graphs.PROGRAMS,
    *decisions.PROGRAMS,
)
