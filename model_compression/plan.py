"""The rules of one compression together: checked, saved and shown as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Union

import chainer

from chainer_kernels.text_table import text_table
from divisible.files import write_json
from divisible.records import reading_json, shown, take_kind
from divisible.terminal_text import printable
from model_compression import block_links
from model_compression.quantized_links import add_rule, check_kind
from model_compression.rules import Prune, Quantize, named, prune_of, quantize_of
from model_compression.selection import (
    Weighted,
    check_users,
    matching,
    select,
    weighted_layers,
)

Rule = Union[Prune, Quantize]
#: Classes of rules, and functions that make rules from settings, by the name in a file.
_KINDS = {"prune": (Prune, prune_of), "quantize": (Quantize, quantize_of)}
_KIND = "compression plan"


class CompressionPlan:
    """Rules for making a model smaller: layers, methods, degrees, moments.

    Args:
        rules (list): Rules, each a :class:`Prune` or :class:`Quantize`. No two may
            change the same part of a layer, such as the zeros of its weights.

    Attributes:
        rules (tuple): The rules.

    Raises:
        TypeError: If one is not a rule.
        ValueError: If there are no rules.

    Example:
        >>> rule = Prune("l2", layers="/0", to=0.5, granularity="row")
        >>> plan = CompressionPlan([rule])
        >>> print(plan)
        layers  method    degree  granularity  progress
        '/0'    prune l2     50%  row          at iteration 0
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        if not isinstance(rules, Iterable) or isinstance(rules, (str, Mapping)):
            raise TypeError(
                f"the rules of a plan are a list of Prune(...) and Quantize(...), not"
                f" {type(rules).__name__}"
            )
        rules = tuple(rules)
        for rule in rules:
            if not isinstance(rule, tuple(kind for kind, _ in _KINDS.values())):
                raise TypeError(
                    f"the rules of a plan are Prune(...) and Quantize(...), not"
                    f" {shown(rule)}"
                )
        if not rules:
            raise ValueError("a plan needs a rule, such as Prune('magnitude', to=0.9)")
        self.rules = rules

    def __eq__(self, other: object) -> bool:
        """Returns whether the rules are the same in the same order."""
        return isinstance(other, CompressionPlan) and self.rules == other.rules

    def __hash__(self) -> int:
        """Returns a hash that equal plans share."""
        return hash(self.rules)

    def layers_of_rules(
        self, layers: Mapping[str, Weighted], is_part: bool = False
    ) -> list[list[str]]:
        """Returns for each rule the paths of the layers that it changes.

        Args:
            layers: Layers of the model, by path.
            is_part: Whether these are a part of the layers, and a rule may find its
                layers elsewhere.

        Raises:
            ValueError: If a rule names no layer, or not all layers that use a weight,
                or two rules have one target.
        """
        found, users = [], {}
        for number, rule in enumerate(self.rules):
            chosen = select(rule.layers, layers, str(rule), is_part)
            for path in chosen:
                for changed in rule.changes:
                    other = users.setdefault((path, changed), number)
                    if other != number:
                        raise ValueError(
                            f"two rules change {changed} of {path}: number {other},"
                            f" {self.rules[other]}, and number {number}, {rule}"
                        )
            if not is_part:
                check_users(chosen, layers, str(rule))
            found.append(chosen)
        return found

    def prepare(self, model: chainer.Link) -> chainer.Link:
        """Adds the values of rules to the layers of a model.

        These are the ranges of activations, whether quantization is in force, and the
        blocks that are skipped. A file
        of a model that was trained under the plan then loads whole, and layers may move
        between ranks: ``Rebalance(lambda: plan.prepare(build()))``.

        Args:
            model (chainer.Link): Undivided model. Its layers need not be made yet.

        Returns:
            chainer.Link: The model.

        Raises:
            ValueError: If a rule names no layer of the model.

        Example:
            >>> import chainer.links as L
            >>> plan = CompressionPlan([Quantize("int8", targets=["input"])])
            >>> model = plan.prepare(chainer.Sequential(L.Linear(4, 3)))
            >>> sorted(model[0]._persistent)
            ['input_is_quantized', 'input_n_seen', 'input_range']
        """
        layers, links = weighted_layers(model), dict(model.namedlinks())
        for rule in self.rules:
            if isinstance(rule, Quantize) and not rule.has_codebook:
                for path in matching(rule.layers, layers, str(rule)):
                    check_kind(path, layers[path].kinds, rule)
                    add_rule(links[path], rule)
        for rule in self.rules:
            if isinstance(rule, Prune) and rule.skip_blocks:
                for path in matching(rule.layers, layers, str(rule)):
                    block_links.prepare(links[path])
        return model

    def settings(self) -> list[dict[str, Any]]:
        """Returns the rules in the form for JSON."""
        words = {kind: word for word, (kind, _) in _KINDS.items()}
        return [{"rule": words[type(rule)], **rule.settings()} for rule in self.rules]

    def save(self, path: str | PathLike) -> None:
        """Writes the plan as JSON; the file appears only when it is complete."""
        write_json(path, {"divisible": _KIND, "rules": self.settings()})

    @classmethod
    def load(cls, path: str | PathLike) -> CompressionPlan:
        """Reads a plan that :meth:`save` wrote.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file holds something else, or a rule is wrong.
        """
        with reading_json(path, f"a {_KIND}") as content:
            take_kind(content, _KIND)
            return cls.of_settings(content.get("rules"))

    @classmethod
    def of_settings(cls, rules: Any) -> CompressionPlan:
        """Returns the plan with the rules of :meth:`settings`.

        Raises:
            ValueError: If a rule is wrong.
        """
        if not isinstance(rules, list):
            raise ValueError(f"its rules are {shown(rules)}")
        return cls([_rule(row, i) for i, row in enumerate(rules)])

    def __str__(self) -> str:
        """Returns the rules as a table."""
        rows = [("layers", "method", "degree", "granularity", "progress")]
        for rule in self.rules:
            row = (named(rule.layers), *rule.columns, str(rule.progress))
            rows.append(tuple(map(printable, row)))
        return text_table(rows, left=(0, 1, 3, 4))

    __repr__ = __str__


def _rule(row: Any, number: int) -> Rule:
    """Makes a rule from its settings in a file."""
    try:
        _, make = _KINDS[row["rule"]]
        return make({name: value for name, value in row.items() if name != "rule"})
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"rule {number}, {shown(row)}, is incomplete: {error}"
        ) from None
