"""The errors of snapshots."""


class SnapshotError(RuntimeError):
    """A snapshot could not be written, or must not be read.

    When ranks save or load together, it is raised alike on every rank.
    """


class MismatchError(SnapshotError, ValueError):
    """What was saved is not what it is to be loaded into."""


class UnreadableError(SnapshotError, ValueError):
    """A file is damaged, or has pickled objects, which could run any code."""
