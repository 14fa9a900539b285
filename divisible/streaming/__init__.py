"""Operands in slower memory: weights and inputs by segments, and held activations.

::

    choice          stream(): chooses the layers that are on disk
    report          the table of stream()
    model_weights   the sizes of layers, and the weights that can be on disk
    disk_speed      measures the speed of a disk
    link            Streamed: a layer whose weights are on disk
    layer_function  a streamed layer in Chainer's graph, computed by segments
    products        a linear layer's and a convolution's arithmetic on a segment
    activations     pointwise functions applied to each segment
    embedding       a streamed embedding in Chainer's graph
    parameter       a parameter of which some rows are in memory
    embedding_parameter  the same for an embedding, whose gradient has few rows
    updates         update rules applied to segments
    initial         initial weights drawn by segments
    mapped          arrays in files without names, and which pages are in memory
    backing_file    the one file of a directory that has these arrays
    places          used and free places of a file
    directories     directories on a disk, not in memory
    input_link      StreamedInput: a layer whose input is larger than memory
    input_function  such a layer in Chainer's graph, computed by segments of samples
    input_rows      an embedding's arithmetic on some rows of ids
    read_ahead      segments that a thread reads while the one before is computed
    large_input     LargeInput: rows of a file, a dataset or a generator
    segments        the number of rows of a segment
    segment_trial   this number, chosen by the first minibatches
    held_store      bytes that leave memory for a while, in a file without a name
    held_in_half    float32 that waits as bfloat16, in memory or in such a file
    thread_waits    waits for such threads, with a deadline
    errors          StoreError
"""

from divisible.streaming.choice import stream
from divisible.streaming.disk_speed import measure_disk
from divisible.streaming.errors import StoreError
from divisible.streaming.input_link import StreamedInput
from divisible.streaming.large_input import LargeInput
from divisible.streaming.link import Streamed
from divisible.streaming.report import StreamReport

__all__ = [
    "LargeInput",
    "StoreError",
    "StreamReport",
    "Streamed",
    "StreamedInput",
    "measure_disk",
    "stream",
]
