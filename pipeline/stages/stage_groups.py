"""Groups of microbatches on their way through a stage: joined, run, taken apart.

`pipeline.stages.groups` describes how the layers of a stage run on a group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from chainer_kernels.contributions import Rows
from divisible.communication.signatures import Tensors
from divisible.schedules.schedule import Schedule
from divisible.schedules.stage_groups import stage_group_sizes
from pipeline.stages.groups import Group, LayerCalls, Part, check_alike
from pipeline.stages.stage import Stage


def check_groups(
    schedule: Schedule, cuts: Sequence[int], carried_states: Sequence[str]
) -> None:
    """Refuses groups of microbatches in stages that carry states.

    Args:
        schedule (Schedule): The schedule.
        cuts: Cuts of the model.
        carried_states: Paths of the links in the whole model that carry a state.

    Raises:
        ValueError: If there are some. All ranks get it, before any message.
    """
    sizes = stage_group_sizes(schedule) if carried_states else ()
    for path in carried_states if max(sizes, default=1) > 1 else ():
        stage = bisect_right(cuts, int(path.split("/")[1])) - 1
        if sizes[stage] > 1:
            raise ValueError(
                f"groups of stages do not go together with carry_state: {path} carries"
                f" a state, and its stage {stage} takes {sizes[stage]} microbatches as"
                f" one. Give this stage groups of 1"
            )


class StageGroups:
    """Runs groups of microbatches through a stage.

    Args:
        stage (Stage): The stage.

    Example::

        outputs = groups.forward(range(4, 8), inputs, skips)
        gradients = groups.backward(range(4, 8), gradients, skips)
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._calls: dict[tuple[int, bool], LayerCalls] = {}
        # The group that is held of the microbatches from the first one on.
        self._groups: dict[int, Group] = {}

    def forward(
        self,
        microbatches: range,
        inputs: Sequence[Tensors],
        skipped: Sequence[Mapping[str, Tensors]],
        is_recomputed: bool = False,
    ) -> list[tuple[Tensors, dict[str, Tensors]]]:
        """Runs the layers on several microbatches (F).

        Args:
            microbatches: Positions of the microbatches in the minibatch.
            inputs: The tensors of each microbatch; see :meth:`.Stage.forward`.
            skipped: The tensors of skip connections for each microbatch.
            is_recomputed (bool): See :meth:`.Stage.forward`.

        Returns:
            The results of :meth:`.Stage.forward` for each microbatch.

        Raises:
            TypeError: If a value between layers does not have the samples along its
                first axis.
        """
        stage = self._stage
        parts = [
            Part(i, (*tensors[0].array.shape, 1)[0], stage.random_key(i))
            for i, tensors in zip(microbatches, inputs)
            if tensors
        ]
        # Microbatches without samples pass through, and no layer is called.
        results = {
            i: stage.forward(i, (), some)
            for i, tensors, some in zip(microbatches, inputs, skipped)
            if not tensors
        }
        self._groups.pop(microbatches[0], None)
        if parts:
            reports, statistics = stage.reports.reporter.scope, stage.statistics
            group = Group(parts, self._calls, reports, statistics)
            self._groups[microbatches[0]] = group
            joined = _joined(
                [each for each in inputs if each],
                [some for some, each in zip(skipped, inputs) if each],
            )
            found = stage.forward(group, *joined, is_recomputed)
            stage.reports.values += group.reports()
            if statistics is not None:
                statistics.count_parts(len(parts) - 1)
            results.update(_taken_apart(group, *found))
        return [results[i] for i in microbatches]

    def recompute(self, microbatches: range) -> None:
        """Runs the forward of several microbatches again (R)."""
        group = self._groups.get(microbatches[0])
        if group is not None:
            self._stage.recompute(group)

    def backward(
        self,
        microbatches: range,
        gradients: Sequence[Tensors],
        skip_gradients: Sequence[Mapping[str, Tensors]],
        split: bool = False,
    ) -> list[tuple[Tensors, dict[str, Tensors]]]:
        """Runs the backward of several microbatches: whole (B), or I only.

        Args:
            microbatches: The microbatches of a forward.
            gradients: The tensors of each microbatch; see :meth:`.Stage.backward`.
            skip_gradients: The tensors of skip connections for each microbatch.
            split (bool): See :meth:`.Stage.backward`.

        Returns:
            The results of :meth:`.Stage.backward` for each microbatch.
        """
        stage, group = self._stage, self._groups.pop(microbatches[0], None)
        there = () if group is None else group.numbers
        results = {
            i: stage.backward(i, (), some, split)
            for i, some in zip(microbatches, skip_gradients)
            if i not in there
        }
        if group is not None:
            chosen = [k for k, i in enumerate(microbatches) if i in there]
            joined = _joined(
                [gradients[k] for k in chosen], [skip_gradients[k] for k in chosen]
            )
            found = stage.backward(group, *joined, split, len(group.parts))
            results.update(_taken_apart(group, *found))
        return [results[i] for i in microbatches]


def _joined(
    tensors: Sequence[Tensors], skipped: Sequence[Mapping[str, Tensors]]
) -> tuple[Tensors, dict[str, Tensors]]:
    """Joins the tensors of microbatches, and those of skip connections."""
    return _all_rows(tensors), {
        name: _all_rows([some[name] for some in skipped]) for name in skipped[0]
    }


def _all_rows(tensors: Sequence[Tensors]) -> Tensors:
    """Joins the tensors of microbatches.

    Raises:
        TypeError: If a gradient is there in some microbatches only, or samples differ
            in shape.
    """
    joined = []
    for each in zip(*tensors):
        arrays = [tensor.array for tensor in each]
        missing = [array is None for array in arrays]
        if any(missing) and not all(missing):
            raise TypeError(
                "a value between stages gets a gradient in some microbatches of a group"
                " only: give this stage groups of 1"
            )
        rows = None
        if not all(missing):
            check_alike(arrays)
            rows = Rows().of(arrays)
        joined.append(each[0]._replace(array=rows))
    return tuple(joined)


def _taken_apart(
    group: Group, tensors: Tensors, skipped: Mapping[str, Tensors]
) -> dict[int, tuple[Tensors, dict[str, Tensors]]]:
    """Returns the tensors of each microbatch of a group, by its position."""
    each = _rows_of(group, tensors)
    skips = {name: _rows_of(group, some) for name, some in skipped.items()}
    return {
        number: (each[k], {name: rows[k] for name, rows in skips.items()})
        for k, number in enumerate(group.numbers)
    }


def _rows_of(group: Group, tensors: Tensors) -> list[Tensors]:
    """Returns the rows of each microbatch."""
    columns = []
    for tensor in tensors:
        arrays = [None] * len(group.parts)
        if tensor.array is not None:
            arrays = [rows for (rows,) in group.split([tensor.array])]
        columns.append([tensor._replace(array=array) for array in arrays])
    return [*zip(*columns)] if columns else [() for _ in group.parts]
