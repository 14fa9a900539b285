"""Devices: each rank is a process of its own, with a device of its own."""

from __future__ import annotations

from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "devices"
FINDS = "``get_device_from_id(n).use()``, ``get_device(...)``, ``model.to_gpu()``"
WRITES = "nothing: all ranks of a host use the device that they are told"
PAGE = "howto/install"


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds the choice of a device."""
    names = "get_device_from_id", "get_device"
    for call in script.calls(*names, within=parts.scope):
        words = script.source(call)
        if "rank" in words or script.mentions("intra_rank"):
            continue
        text = (
            f"all ranks use this device. For one GPU for each rank of a host, put"
            f" {parts.comm}.rank in its place"
        )
        return [Finding(call.lineno, text, page=PAGE)]
    return []
