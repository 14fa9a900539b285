"""Repairs of ChainerMN."""

from chainer_compat._shim import Edit, Shim, since

SHIMS = (
    Shim(
        name="old-communicators",
        module="chainermn.communicators",
        why="'nccl', 'hierarchical' and other names of papers and old scripts are "
        "unknown, and without CuPy the default name ends in words about device memory",
        edits=(
            Edit(
                '    """\n\n    if mpi_comm is None:\n',
                '    """\n    from chainer_compat import _communicators as names;'
                " communicator_name = names.current_name(communicator_name)\n"
                "    if mpi_comm is None:\n",
            ),
        ),
    ),
    Shim(
        name="one-element-int",
        module="chainermn.iterators.multi_node_iterator",
        why="int() of a one-element array is an error: ranks other than the master "
        "stop in create_multi_node_iterator, and the master waits for ever",
        why_not_needed=since("numpy", "1.25"),
        edits=(Edit("int(_size)", "int(_size[0])"),),
    ),
    Shim(
        name="aggregate-without-chainerx",
        module="chainermn.extensions.observation_aggregator",
        why="ObservationAggregator and MultiNodeEarlyStoppingTrigger move variables "
        "to a device of ChainerX, which is not built",
        edits=(
            Edit(
                'value.to_device("native")',
                'value.to_device("native" if chx.is_available() else "@numpy")',
            ),
        ),
    ),
)
