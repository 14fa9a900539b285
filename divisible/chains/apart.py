"""The links of a chain that are taken apart, so that their children become layers.

::

    depth=1                          h, _ = self.block(x)
                                     returns a tuple with None: no layer can do that
    with '/block' opened             the links that block calls are layers, and so are
                                     the functions between them
"""

from __future__ import annotations

from typing import NamedTuple

from chainer import Link

from divisible.chains.calls import ChainError
from divisible.chains.places import Place


class UnlikeLayerError(ChainError):
    """A call of a link that no layer can make, though its parts may.

    Args:
        path (str): Path of the link in the chain.
        reason (str): Cause and cure.
        place (Place or None): Line of the user's code.
    """

    def __init__(self, path: str, reason: str, place: Place | None) -> None:
        super().__init__(reason, place)
        self.path = path


class Apart(NamedTuple):
    """The links that are taken apart.

    Attributes:
        depth: Number of levels of links that are taken apart.
        reasons: Links that are taken apart besides, by their paths, with the reasons
            why no layer can make their calls.
    """

    depth: int
    reasons: dict[str, UnlikeLayerError] = {}

    def is_layer(self, link: Link, path: str, level: int) -> bool:
        """Returns whether a link is one layer.

        Args:
            link (chainer.Link): The link.
            path (str): Its path in the chain.
            level (int): Its level among the links, 1 for a child of the chain.
        """
        if not any(link.children()):
            return True
        return level >= self.depth and path not in self.reasons

    def opening(self, error: UnlikeLayerError) -> Apart:
        """Returns the same with another link that is taken apart."""
        return Apart(self.depth, {**self.reasons, error.path: error})

    def explained(self, error: ChainError) -> ChainError:
        """Returns an error with the reason why a link was taken apart.

        Args:
            error (ChainError): Why the calls of the chain are no layers.
        """
        if not self.reasons:
            return error
        text = str(error)
        # The link that the error is about, or else the last one that was taken apart.
        found = [path for path in self.reasons if f"{path}/" in text]
        path = (found or list(self.reasons))[-1]
        return ChainError(
            f"{self.reasons[path]}\nWith the links of {path} as layers: {text}"
        )
