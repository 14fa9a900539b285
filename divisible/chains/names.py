"""The names that parameters have in the chain that a model was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class ChainNames(Mapping):
    """The path in the chain of each layer that is a link.

    Args:
        paths: Paths by position, such as ``{0: '/conv1', 2: '/conv2'}``.

    Example:
        >>> names = ChainNames({0: '/conv1', 2: '/blocks/0'})
        >>> names[2], names.in_chain('/2/W'), names.in_layers('/blocks/0/W')
        ('/blocks/0', '/blocks/0/W', '/2/W')
        >>> names.in_chain('0/b')
        'conv1/b'
    """

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = dict(paths)
        self._positions = {path: f"/{n}" for n, path in self._paths.items()}

    def __getitem__(self, position: int) -> str:
        return self._paths[position]

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._paths})"

    def in_chain(self, path: str) -> str:
        """Returns the chain's name of a parameter of a layer.

        Args:
            path (str): A path such as ``'/2/W'``, or a key of a file, ``'2/W'``.

        Raises:
            KeyError: If no link of the chain is at that position.
        """
        named = {f"/{position}": path for position, path in self._paths.items()}
        return _replace(path, named)

    def within(self, path: str) -> ChainNames:
        """Returns the names in a larger chain, which has this one as a child.

        Args:
            path (str): Path of this chain in the larger one, such as ``'/predictor'``.

        Example:
            >>> ChainNames({0: '/conv1'}).within('/predictor').in_chain('/0/W')
            '/predictor/conv1/W'
        """
        return ChainNames({position: path + self[position] for position in self})

    def in_layers(self, path: str) -> str:
        """Returns the path in the model of a parameter of the chain.

        Args:
            path (str): A path such as ``'/conv2/W'``, or a key, ``'conv2/W'``.

        Raises:
            KeyError: If the parameter belongs to no layer.
        """
        return _replace(path, self._positions)


def _replace(path: str, names: Mapping[str, str]) -> str:
    """Replaces the longest beginning that has another name."""
    parts = path.strip("/").split("/")
    for n in range(len(parts), 0, -1):
        name = names.get("/" + "/".join(parts[:n]))
        if name is not None:
            found = "/".join([name, *parts[n:]])
            return found if path.startswith("/") else found[1:]
    raise KeyError(f"{path!r} belongs to none of {sorted(names)}")
