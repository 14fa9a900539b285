"""Parts of a script that trains by an updater: model, optimizer, iterator, updater."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.script import Scope, Script, argument, common_block
from pipeline.porting.values import Passed

#: Updaters of Chainer with one loss and one gradient.
UPDATERS = ("StandardUpdater", "ParallelUpdater", "MultiprocessParallelUpdater")


class PartsError(Exception):
    """A part is missing; ``finding`` is the obstacle."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@dataclass
class Parts:
    """Names and places of what a script trains with.

    Attributes:
        scope: The function, or the module, that trains.
        place: The statement before which the pipeline is made.
        late: Statement of a loop before which it is made instead, in the first step.
        model: Name of the variable of the model.
        setup: The call that sets up the optimizer with the model.
        optimizer: Name of the variable of the optimizer.
        updaters: Calls that make the updater; empty for a loop without one.
        iterator: Source of the iterator of the training data; empty without one.
        comm: Name of the communicator of all ranks.
        pipe: Name of the pipeline.
        layers: Name of the list of layers.
        chain: Source of the chain without its loss.
        root: Path of this chain in the model; empty if it is the model itself.
        passed: Variables of callers that became the model.
        children: Paths in the model of further variables that are children of it.
        classifier: Whether the model is a ``Classifier``.
        arguments: Further arguments of the pipeline, as source.
        conversion: Further arguments of ``from_chain``, as source.
        before: Lines before the pipeline is made.
        after: Lines after it.
        example: Source of the inputs of a small minibatch, for ``from_chain``.
        imports: Full names to import.
        neighbours: Modules beside the script that it imports, by their names.
        comm_is_global: Whether the whole script knows the communicator.
        comm_line: Line on which the script makes the communicator; 0 without one.
        seeds: Calls that seed generators, as source.
        functions: Functions to define below the imports, as source.
        result: Name of what a step of the pipeline returns.
    """

    scope: Scope
    place: ast.stmt
    model: str
    setup: ast.Call
    optimizer: str
    updaters: list[ast.Call]
    iterator: str
    late: ast.stmt | None = None
    comm: str = "comm"
    pipe: str = "pipe"
    layers: str = "layers"
    chain: str = ""
    root: str = ""
    passed: list[Passed] = field(default_factory=list)
    children: dict[str, str] = field(default_factory=dict)
    classifier: bool = False
    arguments: list[str] = field(default_factory=list)
    conversion: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    example: str = ""
    imports: set[str] = field(default_factory=set)
    neighbours: dict[str, Script] = field(default_factory=dict)
    comm_is_global: bool = True
    comm_line: int = 0
    seeds: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    result: str = "result"

    def is_after(self, node: ast.AST) -> bool:
        """Returns whether a node is in the scope, behind the pipeline."""
        return (node.lineno, node.col_offset) >= (
            self.place.lineno,
            self.place.col_offset,
        )


def updaters_of(script: Script) -> list[ast.Call]:
    """Returns the calls that make updaters, of Chainer's classes or the script's."""
    own = {each.name for each in updater_classes(script)}
    found = script.calls(*UPDATERS)
    for node in ast.walk(script.tree):
        is_own = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_own and node.func.id in own:
            found.append(node)
    return sorted(found, key=script.span)


def updater_classes(script: Script) -> list[ast.ClassDef]:
    """Returns the classes of a script that derive from an updater of Chainer."""
    return [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.ClassDef)
        and any(script.is_chainers(base, *UPDATERS) for base in node.bases)
    ]


def find_parts(script: Script) -> Parts:
    """Finds the parts of a script.

    Raises:
        PartsError: If one is missing, or there are several.
    """
    updaters = updaters_of(script)
    if not updaters:
        raise PartsError(_no_updater(script))
    first = updaters[0]
    scope = script.scope(first)
    optimizer = _variable(
        argument(first, "optimizer", 1), first, "optimizer", "howto/other_losses"
    )
    iterator = argument(first, "iterator", 0)
    if isinstance(iterator, (ast.Dict, ast.List, ast.Tuple)):
        raise PartsError(
            obstacle(
                first.lineno,
                "the updater has several iterators: a pipeline reads one minibatch."
                " Make one data set of them, or derive from PipelineUpdater",
                "howto/other_losses",
            )
        )
    setup, model = find_setup(script, scope, optimizer, first)
    name = iterator.id if isinstance(iterator, ast.Name) else ""
    places = [*updaters, setup]
    if name:
        places += script.assigned(name, scope)[:1]
    place = place_among(script, scope, updaters, places)
    source = script.source(iterator) if iterator is not None else ""
    return Parts(scope, place, model, setup, optimizer, updaters, source)


def _no_updater(script: Script) -> Finding:
    """Returns the obstacle of a script without an updater or a loop."""
    for call in script.calls("Trainer"):
        updater = argument(call, "updater", 0)
        made = [updater]
        if isinstance(updater, ast.Name):
            assigned = script.assigned(updater.id, script.scope(call))
            made = [each.value for each in assigned]
        for each in made:
            if isinstance(each, ast.Call):
                name = script.source(each.func)
                text = (
                    f"{name} is an updater of another file: derive it from"
                    f" PipelineUpdater, and write what it does with a minibatch in"
                    f" step(x, t)"
                )
                return obstacle(each.lineno, text, "howto/other_losses")
    text = (
        "no updater of Chainer was found, and no loop that calls update() of an"
        " optimizer"
    )
    return obstacle(1, text, "tutorial")


def find_setup(
    script: Script, scope: Scope, optimizer: str, where: ast.AST
) -> tuple[ast.Call, str]:
    """Returns the call that sets up an optimizer, and the name of its model.

    Raises:
        PartsError: If there is none in the scope, or the model is no variable.
    """
    for call in script.methods("setup", scope):
        owner = call.func.value
        parent = script.parent(call)
        is_made_here = isinstance(parent, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == optimizer
            for target in parent.targets
        )
        is_called = isinstance(owner, ast.Name) and owner.id == optimizer
        if (is_called or is_made_here) and (call.args or call.keywords):
            model = _variable(
                argument(call, "link", 0), call, "model", "howto/take_a_chain_apart"
            )
            return call, model
    raise PartsError(
        obstacle(
            where.lineno,
            f"{optimizer}.setup(model) is not in the same function: make the model, the"
            f" optimizer and what trains them in one function",
            "howto/trainer",
        )
    )


def _variable(node: ast.expr | None, where: ast.AST, noun: str, page: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    raise PartsError(
        obstacle(
            where.lineno,
            f"the {noun} is not a single variable: a pipeline has one {noun} with all"
            f" layers",
            page,
        )
    )


def place_among(
    script: Script, scope: Scope, firsts: list[ast.Call], nodes: list[ast.AST]
) -> ast.stmt:
    """Returns the statement of the first call, in the block that has all nodes."""
    paths = []
    for node in nodes:
        path = script.path(node)
        if scope in path:
            path = path[path.index(scope) + 1 :]
        paths.append(path)
    depth = common_block(paths, script)
    path = script.path(firsts[0])
    if scope in path:
        path = path[path.index(scope) + 1 :]
    return path[depth]
