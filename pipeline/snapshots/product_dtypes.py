"""The dtype of products in a manifest, compared when the snapshot is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from chainer_kernels.product_dtype import FLOAT32
from chainer_kernels.switch import products_in_force
from divisible.user_warnings import warn_user

#: The key among the versions of a manifest. Without it products are in float32.
_KEY = "products"


def version_of_products() -> dict[str, str]:
    """Returns what a manifest records among its versions."""
    dtype = products_in_force()
    return {} if dtype == FLOAT32 else {_KEY: dtype}


def warn_of_products(path: str, versions: Mapping[str, str]) -> None:
    """Warns if a snapshot was saved with products in another dtype than here.

    Args:
        path: Directory of the snapshot.
        versions: Versions in its manifest.
    """
    saved, here = versions.get(_KEY, FLOAT32), products_in_force()
    if saved != here:
        warn_user(
            f"{path} was saved by a run with products in {saved}, and this run computes"
            f" them in {here}: it does not continue bit for bit. Call"
            f" chainer_kernels.set_products({saved!r}) before, if this is not meant"
        )
