"""The errors of snapshots."""


class SnapshotError(RuntimeError):
    """A snapshot could not be written, or must not be read.

    When ranks save or load together, it is raised alike on every rank.
    """


class MismatchError(SnapshotError, ValueError):
    """What was saved is not what it is to be loaded into."""
