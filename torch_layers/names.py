"""The names that the parameters of layers have in the module that they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class TorchNames(Mapping):
    """The path in the module of each layer, as ``state_dict`` writes it.

    Args:
        paths: Paths by position, such as ``{0: 'features.0', 2: ''}``. An empty path
            stands for a layer whose parameters have their full names already.

    Example:
        >>> names = TorchNames({0: 'features.0', 2: 'head'})
        >>> names.in_chain('/0/weight'), names.in_layers('head.bias')
        ('features.0.weight', '/2/bias')
        >>> list(names), names[2]
        ([0, 2], 'head')
    """

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = dict(paths)

    def __getitem__(self, position: int) -> str:
        return self._paths[position]

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._paths})"

    def in_chain(self, path: str) -> str:
        """Returns the name in the module of a parameter or buffer of a layer.

        Args:
            path (str): A path such as ``'/2/weight'``, or a key of a file,
                ``'2/weight'``.

        Raises:
            KeyError: If no layer with parameters is at that position.
        """
        position, _, name = path.strip("/").partition("/")
        if not position.isdigit() or int(position) not in self._paths:
            raise KeyError(f"{path!r} belongs to none of the layers {[*self._paths]}")
        above = self._paths[int(position)]
        return f"{above}.{name}" if above else name

    def in_layers(self, name: str) -> str:
        """Returns the path in the model of a parameter or buffer of the module.

        Args:
            name (str): A key of the module's ``state_dict``.

        Raises:
            KeyError: If it belongs to no layer with a path of its own.
        """
        best = None
        for position, above in self._paths.items():
            is_longer = best is None or len(above) > len(self._paths[best])
            if above and name.startswith(f"{above}.") and is_longer:
                best = position
        if best is None:
            raise KeyError(
                f"{name!r} belongs to none of {sorted(self._paths.values())}"
            )
        return f"/{best}/{name[len(self._paths[best]) + 1 :]}"
