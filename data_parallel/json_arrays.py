"""Small things of any structure, as the arrays that a serializer takes."""

from __future__ import annotations

import json
from typing import Any

import chainer
import numpy as np


def serialize(serializer: Any, key: str, value: Any) -> Any:
    """Writes a value, or returns the one that was written.

    Args:
        serializer: Of Chainer.
        key (str): Of the value.
        value: What JSON knows.

    Returns:
        What is there, or ``value`` when it writes; ``None`` if the serializer knows
        none of the key.

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
        # Without dimensions: whoever looks at shapes alone has read it as well.
        serializer(key, np.array(json.dumps(value).encode()))
        return value
    try:
        found = serializer(key, None)
    except KeyError:
        return None
    return None if found is None else json.loads(np.asarray(found).item())
