"""How activations are rounded in the run that was saved, and in the one that loads."""

from __future__ import annotations

from divisible.planning.message_plan import WHOLE
from divisible.planning.retained_arrays import FULL
from divisible.user_warnings import warn_user
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.files import Snapshot


def warn_of_rounding(snapshot: Snapshot, pipeline: BetweenSteps) -> None:
    """Warns if activations wait or travel in other dtypes than in the run saved."""
    here = pipeline.internals.hold_dtype
    saved = snapshot.schedule.get("hold_dtype", FULL)
    if snapshot.schedule and saved != here:
        warn_user(
            f"{snapshot.path} was saved by a run whose activations wait in {saved}, and"
            f" this run's wait in {here}: it does not continue bit for bit. Give"
            f" hold_dtype={saved!r}, if this is not meant"
        )
    here = pipeline.internals.message_dtypes
    saved = snapshot.schedule.get("message_dtypes", [])
    if snapshot.schedule and saved != here:
        saved, here = ("; ".join(each) or WHOLE for each in (saved, here))
        warn_user(
            f"{snapshot.path} was saved by a run whose messages between stages are in"
            f" {saved}, and this run's are in {here}: it does not continue bit for bit."
            f" Give the same message_dtype, if this is not meant"
        )
