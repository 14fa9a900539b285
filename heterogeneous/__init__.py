"""Back propagation on processors of unequal ability, by rectangular mapping.

A unit square stands for the work: its width for the samples, its height for the hidden
units. Each processor has a rectangle whose area is its ability, in the partition whose
messages take the least time (SRPM). During training, abilities are measured repeatedly
and the mapping moves (DRPM). The source is Ozawa, Sugaya and Aso, *Parallelizing of a
Back Propagation in Heterogeneous Environment Using a Rectangular Partitioning Mapping
Method* (2005).

::

    remapper      training that measures its ranks and moves their parts
    mlp           the network: forward, backward, predictions, remapping
    arguments     checks of one rank's arguments
    calls         calls of all ranks, compared before their messages
    sums          within a column, and between columns; results to all columns
    remapping     moves of hidden units, with their optimizer states
    units         hidden units as rows of blocks, and their first values
    messages      sends, receives, waits
    step_seconds  the parts of a step's time

    rectangles    the square, cut into a rectangle for each processor
    partition     the best rectangles for given abilities
    columns       the search for columns of processors
    costs         the time of messages, equation (8)
    baselines     earlier mappings
    picture       partitions as text, and drawn
    estimates     abilities by measured times, and whether to remap
    checks        measurements, and the partition that follows from them
    moved_units   which hidden units travel in a remapping

Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "divisible.planning.shares": ["integer_shares"],
        "heterogeneous.baselines": ["method_1", "method_h", "method_h_rev"],
        "heterogeneous.costs": ["CommunicationCost", "OneToOne"],
        "heterogeneous.checks": ["Check"],
        "heterogeneous.estimates": ["ability", "decide", "efficiency"],
        "heterogeneous.mlp": ["RectangularMLP"],
        "heterogeneous.remapper": ["Remapper"],
        "heterogeneous.moved_units": ["Transfer", "transfers"],
        "heterogeneous.partition": ["RectangularPartition", "rectangular_partition"],
        "heterogeneous.rectangles": ["Rectangle"],
        "heterogeneous.step_seconds": ["StepSeconds"],
    },
)
