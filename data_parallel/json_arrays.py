"""Small values of any structure, as the arrays that a serializer needs."""

from __future__ import annotations

import json
from typing import Any

import chainer
import numpy as np


def serialize(serializer: Any, key: str, value: Any) -> Any:
    """Saves a value, or returns the saved one.

    Args:
        serializer: A serializer of Chainer.
        key (str): Key of the value.
        value: A value that JSON can represent.

    Returns:
        The loaded value, or ``value`` itself when it is saved; ``None`` if the file has
        no such key.

    Example:
        >>> target = {}
        >>> writer = chainer.serializers.DictionarySerializer(target)
        >>> serialize(writer, "state", {"a": [1, 2.5]})
        {'a': [1, 2.5]}
        >>> reader = chainer.serializers.NpzDeserializer(target)
        >>> serialize(reader, "state", None), serialize(reader, "other", None)
        ({'a': [1, 2.5]}, None)
    """
    if not isinstance(serializer, chainer.Deserializer):
        # The array has no dimensions, so it is complete even if only shapes are read.
        serializer(key, np.array(json.dumps(value).encode()))
        return value
    if getattr(serializer, "group", serializer) is None:
        # A file of HDF5 lacks the group that the key would be in.
        return None
    try:
        found = serializer(key, None)
    except KeyError:
        return None
    return None if found is None else json.loads(np.asarray(found).item())
