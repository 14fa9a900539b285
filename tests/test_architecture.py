"""What a newcomer may rely on: no circle of modules, and floors that hold."""

import ast
import configparser
import importlib
import re
from pathlib import Path

import pytest

from tests.support.import_circles import circles, import_graph
from tests.support.processes import PACKAGES

ROOT = Path(__file__).parents[1]
#: The most lines of a module: a longer one is two nouns.
LONGEST = 400
FACES = {
    "chainer_compat": """
        enable_numpy_aliases enable_python_aliases install plug_in report
    """,
    "divisible": """
        Disk Divisible LayerCost LayerMemory Machine MemoryLimitError ModelMemory
        Network NotMadeError Plan Profile RandomKey __version__ best_plan carry_state
        deferred_init from_chain keyed_random_state partition pop profile register_split
        simulate stash trace_memory
    """,
    "divisible.streaming": """
        LargeInput StoreError StreamReport Streamed StreamedInput measure_disk stream
    """,
    "divisible.schedules": """
        Action Costs NAMES Schedule ScheduleError Timeline Transfer create dualpipe_v
        gpipe group_stages group_weights interleaved interleaved_zb list_schedule
        looped_bfs one_f_one_b optimal_schedule pipedream_2bw v_half v_min
        zero_bubble_h1 zero_bubble_h2 zero_bubble_v
    """,
    "data_parallel": """
        Exchange ExchangeResult Grid MultiNodeOptimizer ReplicaIterator
        create_multi_node_optimizer measure_break_even simulate_exchange
    """,
    "heterogeneous": """
        Check CommunicationCost OneToOne Rectangle RectangularMLP RectangularPartition
        Remapper StepSeconds Transfer ability
        decide efficiency integer_shares method_1 method_h method_h_rev
        rectangular_partition transfers
    """,
    "mixed_precision": """
        ActivationGradients DynamicLossScale GradientReport GradientStatistics LARS
        LARSHook LayerTypes LossScale MixedPrecision MomentumSGD16 StaticLossScale
        float32_loss to_float16
    """,
    "model_compression": """
        Compress CompressionPlan Distillation Prune Quantize Sensitivity apply
        block_report int8_report load_applied plot_progress sensitivity
    """,
    "pipeline": """
        ActionError DisagreementError LoggerReport Pipeline PipelineEvaluator
        PipelineUpdater ProgressLine Rebalance RunStatus SeededShuffle Snapshot
        SnapshotError StallError StopOnSignal TimelineReport memory_copies
        abort_on_error export_npz import_npz latest_snapshot load_snapshot predict
        rebalance recv_data recv_grad repartition save_snapshot send_data send_grad
        snapshot wait_for_snapshot
    """,
    "torch_layers": """
        TorchChain TorchLayer TorchLoss TorchOptimizer from_torch
    """,
}
#: Packages whose modules are private, but for a few that their docstrings explain.
UNLISTED = {"chainer_compat"}
#: The beginning of a line of a list: names of modules, then what they are.
ENTRY = re.compile(r" +(?:-> )?((?:[a-z]\w*(?:\.py)?, )*[a-z]\w*(?:\.py)?)(\s+|$)")
#: What packages need that is not installed with this project.
EXTRAS = {"torch_layers": "torch"}


@pytest.mark.parametrize("package", FACES)
def test_a_face_has_what_users_type_and_nothing_else(package):
    if package in EXTRAS:
        pytest.importorskip(EXTRAS[package])
    face = importlib.import_module(package)
    assert sorted(face.__all__) == sorted(FACES[package].split())
    assert all(getattr(face, name) is not None for name in face.__all__)


def test_every_folder_of_a_package_is_installed():
    """An editable install finds a folder that setup.cfg forgot; a wheel does not."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = setup["options"]["packages"].split()
    tops = {name.partition(".")[0] for name in named} | set(FACES) | set(PACKAGES)
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in tops
        for path in (ROOT / top.partition(".")[0]).rglob("__init__.py")
    }
    assert sorted(found) == sorted(named)


def test_no_module_is_too_long():
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert len(lines) > 100
    assert [name for name, n in lines.items() if n > LONGEST] == []


def listed_modules(text: str, modules: set[str]) -> tuple[set[str], set[str]]:
    """Returns the names in the list of modules of a docstring.

    Args:
        text: The docstring of a package.
        modules: Names of its modules.

    Returns:
        All names at the beginning of an indented line; and those among them that stand
        in a list of modules, but name none.
    """
    found, unknown = set(), set()
    for paragraph in text.split("\n\n"):
        names, as_columns = set(), set()
        for match in filter(None, map(ENTRY.match, paragraph.split("\n"))):
            entries = set(match[1].replace(".py", "").split(", "))
            names |= entries
            if len(match[2]) > 1:
                as_columns |= entries
        found |= names
        if len(names & modules) > 1:
            unknown |= as_columns - modules
    return found, unknown


def modules_of(folder: Path) -> set[str]:
    """Returns the names of a package's public modules and packages."""
    files = {path.stem for path in folder.glob("*.py")}
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    return {name for name in files | folders if not name.startswith("_")}


def package_texts() -> dict[str, tuple[str, set[str]]]:
    """Returns the docstring and the modules of each package with several, by name."""
    texts = {}
    for package in (*PACKAGES, "benchmarks"):
        for path in sorted((ROOT / package).rglob("__init__.py")):
            modules = modules_of(path.parent)
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if len(modules) > 1:
                texts[str(path.parent.relative_to(ROOT))] = text, modules
    return texts


PACKAGE_TEXTS = package_texts()


@pytest.mark.parametrize("package", PACKAGE_TEXTS)
def test_a_package_lists_all_of_its_modules_or_none(package):
    """A newcomer finds a module by the list in the docstring of its package."""
    text, modules = PACKAGE_TEXTS[package]
    listed, unknown = listed_modules(text, modules)
    assert not unknown
    if listed & modules or not package.startswith("benchmarks"):
        missing = set() if package in UNLISTED else modules - listed
        assert not missing


def test_a_gap_in_a_list_of_modules_would_be_found():
    text = "Parts.\n\n::\n\n    one, two   parts\n    old        a former part"
    listed, unknown = listed_modules(text, {"one", "two", "three"})
    assert {"one", "two", "three"} - listed == {"three"}
    assert unknown == {"old"}


def test_no_modules_import_each_other():
    graph = import_graph()
    assert len(graph.modules) > 100
    assert circles(graph) == []


def test_a_circle_would_be_found():
    graph = import_graph()
    low, high = "divisible.schedules.actions", "divisible.schedules.schedule"
    graph.add_import(importer=low, imported=high)
    (names,) = circles(graph)
    assert {low, high} <= set(names)


def test_names_that_are_loaded_lazily_count():
    graph = import_graph()
    for package in ("divisible", "mixed_precision", "pipeline"):
        assert len(graph.find_modules_directly_imported_by(package)) > 4
    assert set(PACKAGES) <= graph.modules
