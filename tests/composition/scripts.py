"""Writes a case as a script that needs nothing of the tests."""

from __future__ import annotations

import inspect
import pprint

from tests.composition import losses, models, own_layers, torch_blocks
from tests.composition.arguments import arguments_of
from tests.composition.cases import Case, Event, Way
from tests.composition.updating import HOOKS, RULES, compression_rule

_HEAD = '''
"""Run by: mpiexec -n {n_ranks} python this_script.py

{line}
"""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers
from mpi4py import MPI

import chainer_kernels
from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan, carry_state, deferred_init, pop, stash
from divisible.backward.split_functions import register_split
from divisible.schedules import Schedule
from divisible.streaming import Streamed
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize
from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot

comm = MPI.COMM_WORLD
chainer.global_config.dtype = np.dtype("{dtype}")
'''


def script(case: Case) -> str:
    """Returns a script that runs a case, and prints what its calls return."""
    dtype = "float64" if case.model.dtype == "float64" else "float32"
    n_ranks = max(way.n_ranks for way in case.ways)
    parts = [_HEAD.lstrip().format(n_ranks=n_ranks, line=case, dtype=dtype)]
    codes = models.codes_of(case.model)
    parts += torch_blocks.head(codes)
    for module in (own_layers, *torch_blocks.MODULES):
        parts += _sources(module, codes)
    if "split" in case.model.blocks:
        parts.append("register_split(SplitScale, _of_input, _of_weight)")
    measure = losses.LOSSES[case.model.loss]
    functions = [each for each in (measure.lossfun, measure.accfun) if each is not None]
    parts += _sources(losses, [each.__name__ for each in functions])
    parts.append(_build(case, codes))
    parts.append(_start(case))
    parts.append(_minibatches(case))
    parts.append(_life(case))
    return "\n\n".join(parts)


def _sources(module: object, codes: list[str]) -> list[str]:
    """Returns the source of everything in a module that some code names."""
    found: dict[str, str] = {}
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", None) == module.__name__
            has_source = inspect.isfunction(value) or inspect.isclass(value)
            if is_own and has_source and name in code and name not in found:
                found[name] = inspect.getsource(value).rstrip()
                waiting.append(found[name])
    order = list(vars(module))
    return [found[name] for name in sorted(found, key=order.index)]


def _build(case: Case, codes: list[str]) -> str:
    lines = ["def build():"]
    lines.append(f"    np.random.seed({case.seed % 2**32})")
    indent = "    "
    if case.model.is_deferred:
        lines.append(f"    with deferred_init(seed={case.seed % 2**31}):")
        indent = "        "
    lines.append(f"{indent}model = Divisible(")
    lines += [f"{indent}    {code}," for code in codes]
    lines.append(f"{indent})")
    for one, other, is_transposed in case.model.ties:
        paths = [models.weight_of(case.model, block) for block in (one, other)]
        lines.append(f"{indent}model.tie({paths[0]!r}, {paths[1]!r}, {is_transposed})")
    returned = "to_float16(model)" if case.model.dtype == "float16" else "model"
    return "\n".join([*lines, f"{indent}return {returned}"])


def _start(case: Case) -> str:
    measure = losses.LOSSES[case.model.loss]
    rule = inspect.getsource(RULES[case.update.rule]).split("lambda: ")[1].strip(" ,\n")
    lines = [
        "def start(n_ranks, n_replicas, shares, stage_ranks, cuts, exchange, options,",
        "          has_kernels=True, products='float32'):",
        "    own = comm.Split(int(comm.rank >= n_ranks))",
        "    if comm.rank >= n_ranks:",
        "        return None",
        "    (chainer_kernels.enable if has_kernels else chainer_kernels.disable)()",
        "    if has_kernels:",
        "        chainer_kernels.set_products(products)",
        "    grid = None",
        "    if n_replicas > 1:",
        "        grid = Grid(own, n_ranks // n_replicas)",
        "        grid.shares = shares",
        "    rank = own.rank if grid is None else grid.pipeline.rank",
        "    model, plan = build(), Plan(cuts)",
        "    mine = [i for i, owner in enumerate(stage_ranks) if owner == rank]",
        "    stages = [model.divide(*plan.range(i)) for i in mine]",
        f"    optimizer = {rule}",
    ]
    if case.update.loss_scale:
        scale = case.update.loss_scale
        word = repr(scale)
        if scale < 0:
            word = "DynamicLossScale(2.0**10, growth_interval=2)"
        lines.append(
            f"    optimizer = MixedPrecision(optimizer, loss_scale={word}, comm=own)"
        )
        lines.append("    options['loss_scale'] = optimizer.loss_scale")
    accfun = "None" if measure.accfun is None else _name(measure.accfun)
    lines += [
        "    pipe = Pipeline(",
        "        stages,",
        "        own if grid is None else grid,",
        f"        lossfun={_name(measure.lossfun)},",
        f"        accfun={accfun},",
        f"        seed={case.seed % 2**31},",
        "        timeout=20,",
        "        **options,",
        "    )",
        "    if grid is not None:",
        "        optimizer = create_multi_node_optimizer(",
        "            optimizer, grid.data, pipeline=pipe, **exchange",
        "        )",
        "    optimizer = pipe.setup(optimizer)",
    ]
    for name in case.update.hooks:
        hook = inspect.getsource(HOOKS[name]).split("lambda: ")[1].strip(" ,\n")
        lines.append(f"    optimizer.add_hook({hook})")
    for name, blocks in (("frozen", case.model.frozen), ("slower", case.update.rates)):
        if blocks:
            below = models.paths_below(case.model, blocks)
            lines.append("    for stage in pipe.stages.values():")
            lines.append("        for path, param in stage.namedparams():")
            lines.append(f"            if path.startswith({below}):")
            word = "alpha" if case.update.rule == "Adam" else "lr"
            effect = "param.update_rule.enabled = False"
            if name == "slower":
                effect = f"param.update_rule.hyperparam.{word} /= 2"
            lines.append(f"                {effect}")
    if case.update.compression:
        lines.append(f"    plan = CompressionPlan([{compression_rule(case)}])")
        lines.append("    pipe.compress = Compress(plan, optimizer, pipeline=pipe)")
    return "\n".join([*lines, "    return pipe, optimizer"])


def _name(function: object) -> str:
    module = getattr(function, "__module__", "")
    name = getattr(function, "__name__", str(function))
    return f"F.{name}" if module.startswith("chainer") else name


def _minibatches(case: Case) -> str:
    model, life = case.model, case.life
    dtype = "float64" if model.dtype == "float64" else "float32"
    lines = [
        "def minibatch(number):",
        f"    random = np.random.RandomState(({case.seed} * 1009 + number) % 2**32)",
        f"    n = {life.sizes}[number]",
    ]
    if model.domain == "words":
        lines += [
            f"    shape = n, {life.lengths}[number]",
            f"    x = random.randint(0, {models.N_WORDS}, shape).astype(np.int32)",
            f"    t = random.randint(0, {models.N_WORDS}, shape).astype(np.int32)",
        ]
    else:
        shape = (2, models.SIDE, models.SIDE) if model.domain == "images" else (5,)
        lines += [
            f"    x = random.normal(size=(n, *{shape})).astype({dtype!r})",
            f"    t = random.randint(0, {models.N_CLASSES}, n).astype(np.int32)",
        ]
    if model.n_inputs == 2:
        lines.append(f"    x = x, random.normal(size=(n, 3)).astype({dtype!r})")
    measure = losses.LOSSES[model.loss]
    if measure.ignores:
        lines.append("    t[random.uniform(size=t.shape) < 0.3] = -1")
    targets = "t" if measure.has_targets else "None"
    return "\n".join([*lines, f"    return x, {targets}"])


def _life(case: Case) -> str:
    lines = [f"run = start(*{_arguments(case.way)})"]
    events, parts = list(case.life.events), case.life.accumulates
    for number in range(len(case.life.sizes)):
        while events and events[0].before == number:
            lines += _event(case, events.pop(0), number)
        lines += [
            "if run is not None:",
            "    pipe, optimizer = run",
            f"    x, t = pipe.my_part(*minibatch({number}))",
            f"    result = pipe.step(x, t, accumulate={number in parts})",
            "    optimizer.update()" if number + 1 not in parts else "",
        ]
        if case.update.compression:
            lines.append(
                f"    pipe.compress.advance({number + 1}, {(number + 1) / 10})"
            )
        lines.append(f"    print(comm.rank, {number}, dict(result), flush=True)")
    for event in events:
        lines += _event(case, event, len(case.life.sizes) - 1)
    return "\n".join([*lines, "if run is not None:", "    run[0].close()"])


def _event(case: Case, event: Event, number: int) -> list[str]:
    batch = f"pipe.my_part(*minibatch({number}))"
    if event.way is not None:
        return [
            "if run is not None:",
            "    if run[0].flush():",
            "        run[1].update()",
            "    save_snapshot('snapshot', *run)",
            "    run[0].close()",
            "comm.Barrier()",
            f"run = start(*{_arguments(event.way)})",
            "if run is not None:",
            "    load_snapshot('snapshot', *run)",
        ]
    calls = {
        "evaluate": f"print(comm.rank, pipe.evaluate(*{batch}), flush=True)",
        "predict": f"print(comm.rank, pipe.predict({batch}[0]), flush=True)",
        "reset": "pipe.reset_states()",
        "move": (
            f"pipe.flush() and optimizer.update()\n"
            f"    rebalance(pipe, optimizer, {list(event.cuts)}, build)"
        ),
        "caught": "pass",
        "shrink": "pipe.compress.shrink()",
    }
    lines = ["if run is not None:", "    pipe, optimizer = run"]
    return [*lines, f"    {calls[event.name]}"]


def _arguments(way: Way) -> str:
    options = {**arguments_of(way), "n_microbatches": way.n_microbatches}
    schedule = options["schedule"]
    if not isinstance(schedule, str):
        options["schedule"] = _Code(f"Schedule.parse({str(schedule)!r})")
    shares = list(way.shares) or None
    values = (way.n_ranks, way.n_replicas, shares, way.stage_ranks, list(way.cuts))
    kernels = way.has_kernels, way.products or "float32"
    return pprint.pformat((*values, dict(way.exchange), options, *kernels), width=100)


class _Code(str):
    """An expression, which is shown as it is."""

    def __repr__(self) -> str:
        return str(self)
