"""The paths of a rank's parameters, by the parameters and by their update rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import chainer

from divisible import Divisible


class ParameterPaths:
    """The parameters of a rank's stages and of its loss.

    Args:
        stages: This rank's stages, by number.
        loss_links: Links of the loss behind the last layer, by name.
    """

    def __init__(
        self, stages: Mapping[int, Divisible], loss_links: Mapping[str, chainer.Link]
    ) -> None:
        self._stages, self._loss_links = stages, loss_links
        self.forget()

    def forget(self) -> None:
        """Drops all parameters, because the stages may have others now."""
        # The objects are kept with their ids, so that no id is used again.
        self._params: dict[int, tuple[chainer.Parameter, str]] = {}
        self._rules: dict[int, tuple[chainer.UpdateRule, str]] = {}

    def of(self, param: chainer.Parameter) -> str | None:
        """Returns a parameter's path in the undivided model, or as ``'/loss/W'``.

        Returns ``None`` for a parameter that is neither in a stage nor in the loss.
        """
        if id(param) not in self._params:
            self._find()
        return self._params.get(id(param), (param, None))[1]

    def of_rule(self, rule: chainer.UpdateRule) -> str | None:
        """Returns the path of the parameter that an update rule updates."""
        if id(rule) not in self._rules:
            self._find()
        return self._rules.get(id(rule), (rule, None))[1]

    def _find(self) -> None:
        self._params = {id(param): (param, path) for path, param in self._named()}
        self._rules = {
            id(param.update_rule): (param.update_rule, path)
            for param, path in self._params.values()
            if param.update_rule is not None
        }

    def _named(self) -> Iterator[tuple[str, chainer.Parameter]]:
        for name, link in self._loss_links.items():
            for path, param in link.namedparams():
                yield f"/{name}{path}", param
        for stage in self._stages.values():
            yield from stage.namedparams()
