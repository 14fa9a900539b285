"""Operands in slower memory: weights by segments, and what is held for a while.

::

    choice          stream(): which layers are on disk
    report          its table
    model_weights   how large layers are, and which can be on disk
    disk_speed      how fast a disk is
    link            Streamed: a layer whose weights are on disk
    layer_function  it in Chainer's graph: forward and backward by segments
    products        a linear layer's and a convolution's arithmetic on a segment
    activations     pointwise functions applied to each segment
    parameter       a parameter of which some rows are in memory
    updates         update rules applied to segments
    initial         initial weights drawn by segments
    mapped          arrays in files without names; what of them is in memory
    backing_file    the one file of a directory that these arrays are in
    places          which places of a file are free
    directories     whose files are larger than memory
    segments        how many rows
    segment_trial   that number, chosen by the first minibatches
    held_store      bytes that leave memory for a while, in a file without a name
    errors          StoreError
"""

from divisible.streaming.choice import stream
from divisible.streaming.disk_speed import measure_disk
from divisible.streaming.errors import StoreError
from divisible.streaming.link import Streamed
from divisible.streaming.report import StreamReport

__all__ = ["StoreError", "StreamReport", "Streamed", "measure_disk", "stream"]
