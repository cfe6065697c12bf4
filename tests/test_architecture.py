"""Who may import whom, as one table: read from the sources for direct imports, and from a fresh process for
what comes along with them. A new file must be given its place here.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("runner", "suite")
CUDA_FILE = "runner/device/cuda.py"


@dataclass(frozen=True, slots=True)
class Layer:
    """Files with the same rights.

    libraries: what they may import directly beside the standard library. own: modules or packages of ours
    they may import, less `not_own`. loads: all the libraries that importing them may bring along (None:
    any). never: modules that importing them must not bring along. banned: parts of the standard library
    that they may not import.
    """

    name: str
    files: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    not_own: tuple[str, ...] = ()
    loads: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()


def under(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names.split())


def under_profile(names: str) -> tuple[str, ...]:
    return modules(under("suite/profile", names))


def modules(files: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(module_of(file) for file in files)


def module_of(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


PLANNING_FILES = under(
    "runner",
    "core model_spec models real_shapes config block_hashes blocks prefix_cache encoder_slots resident_rows "
    "admission scheduler commands compilers measure repeats slot_state spans sync_check",
)
PLANNING = (*modules(PLANNING_FILES), "runner.ranges")
# What the suite may know of a runner: its nouns and settings, never how it plans or computes.
FACTS = (
    "runner.gguf",
    *("runner.core", "runner.models", "runner.config", "runner.measure", "runner.repeats", "runner.spans"),
    "runner.compilers",
    "runner.sync_check",
    "runner.inputs.arms",
    "runner.inputs.float_bits",
)
HEAVY = ("torch", "transformers")
# The modules of suite/micro that run in the process that measures.
MEASURING = "ceiling_probes child hashing instrument machine pool transfers"
MACHINERY = ("runner.engine", "runner.executor", "runner.scheduler", "runner.kernels", "runner.weights")

LAYERS = (
    Layer("planning", PLANNING_FILES, own=PLANNING, loads=(), never=("suite",)),
    Layer("ranges", ("runner/ranges.py",), libraries=("nvtx",), loads=(), never=("suite",)),
    Layer(
        "inputs",
        under("runner/inputs", "arms batch compile float_bits rope_positions routes staging supplied"),
        libraries=("numpy",),
        own=(*PLANNING, "runner.inputs"),
        loads=("numpy",),
        never=("suite",),
    ),
    Layer(
        "host side of a device",
        under("runner/device", "base channel null process report shared"),
        libraries=("numpy",),
        own=(*PLANNING, "runner.device"),
        loads=("numpy",),
        never=("suite", "runner.kernels"),
    ),
    Layer(
        "engine",
        under("runner", "executor engine"),
        libraries=("numpy",),
        own=(*PLANNING, "runner.inputs", "runner.device.base", "runner.executor"),
        loads=("numpy",),
        never=("suite", "runner.kernels"),
    ),
    Layer(
        "device side of a device",
        under("runner/device", "command_runner cuda host process_child torch_trace"),
        libraries=("numpy", "torch"),
        own=(*PLANNING, "runner.device", "runner.kernels"),
        never=("suite", "runner.engine", "runner.executor", "runner.inputs"),
    ),
    Layer(
        "kernels",
        under(
            "runner/kernels",
            "attention attention_choice compiled_forward cpu_layers decode_inputs encoder geometry "
            "kept_contexts kvcache merge model noise quick_norm packed_linear program quick_layer sample "
            "sdpa_attention speculation sync_watch varlen_attention",
        ),
        libraries=("torch", "transformers"),
        own=(
            *("runner.core", "runner.models", "runner.config", "runner.commands", "runner.slot_state"),
            *("runner.kernels", "runner.weights", "runner.spans", "runner.sync_check"),
        ),
        never=("suite", "runner.engine", "runner.executor", "runner.inputs", "runner.scheduler"),
    ),
    Layer(
        "kernels in Triton",
        under("runner/kernels", "triton_attention triton_inputs"),
        libraries=("torch", "triton"),
        own=("runner.core", "runner.kernels", "runner.config", "runner.commands"),
        never=("suite", "runner.engine", "runner.executor", "runner.inputs", "runner.scheduler"),
    ),
    Layer(
        "weights",
        ("runner/weights.py",),
        libraries=("torch", "transformers"),
        own=("runner.core", "runner.model_spec"),
        never=("suite", "runner.kernels", "runner.device", "runner.engine", "runner.inputs"),
    ),
    Layer(
        "checkpoints",
        under("runner", "checkpoints gguf"),
        libraries=("transformers",),
        own=("runner.core", "runner.model_spec"),
        loads=(),
        never=("suite",),
    ),
    Layer(
        "models of a scenario",
        ("suite/model_source.py",),
        libraries=("huggingface_hub", "pydantic"),
        own=("runner.checkpoints", "runner.core", "runner.models", "suite.schema"),
        never=(*HEAVY, *MACHINERY, "huggingface_hub"),
    ),
    Layer(
        "suite",
        (
            *under(
                "suite",
                "__main__ arms arrivals case_label checks cli commands control demand embeds_demand",
            ),
            *under(
                "suite",
                "embeds_file environment errors experiment metrics need plan progress protocol publish",
            ),
            *under(
                "suite",
                "amplification arrival_kinds bill cost cost_time image_demand lengths replay seeding slopes",
            ),
            *under("suite", "answer_table tolerance trace_demand turns weighted"),
            *under("suite", "logprob_check prefix_demand prompt_drawing record sampling scenario"),
            *under("suite", "scenario_source schema store summary token_case torch_file traffic"),
            *under(
                "suite",
                "child_environment instrumented_runs kept_ceilings kept_span_costs step_costs worker_process",
            ),
            *under("suite", "standard_output workload yaml_source"),
            *under("suite", "case_design comparison cpu_use goodput gpu_use pace resume vllm_requests"),
            *under("suite/validity", "accounts machine nesting rounds rule schedule steadiness tokens"),
            *under("suite", "compare_environments compare_folders compare_result compare_runs compare_table"),
            *under("suite", "baseline baseline_run baseline_turns gate imported_metrics pytest_benchmark"),
            *under("suite", "archive archive_folder archive_note attribution break_even thinning"),
            *under("suite", "budget left_out"),
            *under("suite", "step_list step_list_check step_list_plan step_list_recorded"),
            *under("suite/traces", "azure_llm azure_lmm azure_lmm_rebased base block_lengths burstgpt"),
            *under("suite/traces", "lines mooncake opening reading sample servegen servegen_dataset vidur"),
        ),
        libraries=(
            *("numpy", "pandas", "pyarrow", "pydantic", "pydantic_core"),
            *("psutil", "rich", "ruamel", "safetensors", "scipy", "typer"),
        ),
        own=(*FACTS, "runner.device.base", "suite"),
        not_own=("suite.oracle", "suite.worker"),
        never=(*HEAVY, *MACHINERY, "suite.oracle", "suite.worker"),
    ),
    Layer(
        "files",
        under("suite", "atomic_file folder_lock memory_errors"),
        own=("suite.errors",),
        loads=(),
        never=("runner", *HEAVY),
    ),
    Layer(
        "captures",
        under("suite/profile", "attribution capture comparison merged perfetto scopes versions wording"),
        own=(
            *("runner.measure", "runner.ranges", "runner.spans"),
            *under_profile("attribution capture comparison perfetto scopes versions"),
        ),
        loads=(),
        never=(*HEAVY, *MACHINERY, "runner.device", "suite.store"),
        banned=("os", "pathlib", "io", "time", "subprocess"),
    ),
    Layer(
        "profilers",
        under("suite/profile", "commands files nsys nsys_sqlite session trace_events window"),
        own=("runner.ranges", "runner.spans", *FACTS, "suite"),
        not_own=("suite.oracle", "suite.worker", "suite.report"),
        never=(*HEAVY, *MACHINERY, "suite.oracle", "suite.worker"),
    ),
    Layer(
        "statistics",
        under("suite", "precision ratios verdict"),
        libraries=("numpy", "scipy"),
        own=("suite.errors", "suite.ratios"),
        never=("runner", *HEAVY),
        banned=("os", "pathlib", "io", "time", "datetime", "shutil", "tempfile", "glob", "subprocess"),
    ),
    Layer(
        "explain",
        under("suite", "command_costs explain prediction step_list_commands"),
        libraries=("numpy",),
        own=(*FACTS, "runner.commands", "runner.device.null", "runner.engine", "suite"),
        not_own=("suite.oracle", "suite.worker", "suite.report"),
        never=(*HEAVY, "runner.kernels", "runner.weights", "suite.oracle", "suite.worker"),
    ),
    Layer(
        "span costs",
        under("suite", "busy_time cost_tables idle_causes lane_pieces lanes span_costs steady"),
        libraries=("numpy",),
        own=(
            *("runner.measure", "runner.spans", "suite.busy_time", "suite.errors", "suite.idle_causes"),
            *("suite.lane_pieces", "suite.metrics", "suite.span_costs", "suite.steady"),
        ),
        never=(*HEAVY, *MACHINERY, "runner.device", "suite.store", "suite.worker", "suite.oracle"),
        banned=("os", "pathlib", "io", "time", "datetime", "shutil", "tempfile", "glob", "subprocess"),
    ),
    Layer(
        "ceilings",
        under("suite", "ceilings ceiling_store"),
        libraries=("psutil", "pydantic"),
        own=(
            *(*FACTS, "runner.spans", "suite.ceilings", "suite.command_costs", "suite.environment"),
            "suite.atomic_file",
        ),
        never=(*HEAVY, *MACHINERY, "runner.device", "suite.oracle", "suite.worker", "suite.micro"),
    ),
    Layer(
        "micro-benchmarks from outside",
        under("suite/micro", "case catalogue median protocol session span_cost table timing"),
        libraries=("pydantic",),
        own=(
            *("runner.core", "runner.models", "runner.measure", "runner.spans"),
            *("suite.ceilings", "suite.ceiling_store"),
            *("suite.child_environment", "suite.errors", "suite.schema"),
            *("suite.report.wording", "suite.micro"),
        ),
        not_own=modules(under("suite/micro", MEASURING)),
        never=(*HEAVY, *MACHINERY, "runner.device", "suite.oracle", "suite.worker"),
    ),
    Layer(
        "micro-benchmarks",
        under("suite/micro", MEASURING),
        libraries=("numpy", "torch"),
        own=(
            *(*PLANNING, "runner.spans", "runner.device", "runner.kernels.model", "runner.kernels.program"),
            *("runner.kernels.cpu_layers", "runner.kernels.packed_linear", "runner.kernels.sync_watch"),
            *("runner.weights", "suite.ceilings", "suite.ceiling_store", "suite.command_costs"),
            *("suite.environment", "suite.micro"),
        ),
        never=("runner.engine", "runner.executor", "runner.scheduler", "suite.oracle", "suite.worker"),
    ),
    Layer(
        "spans that may be repeated",
        ("suite/repeatable.py",),
        own=("runner.commands", "runner.config", "runner.models", "runner.spans"),
        never=(*HEAVY, *MACHINERY),
    ),
    Layer(
        "supplied rows",
        ("suite/supplied.py",),
        libraries=("numpy", "torch"),
        own=("runner.core", "runner.models", "runner.weights", "suite.workload"),
        never=("runner.kernels", "runner.device", "runner.engine", "suite.oracle", "suite.worker"),
    ),
    Layer(
        "worker",
        ("suite/worker.py",),
        own=(*FACTS, "runner.device.base", "runner.engine", "suite"),
        not_own=("suite.cli", "suite.commands", "suite.experiment", "suite.report"),
        never=(*HEAVY, "suite.oracle", "suite.report"),
    ),
    Layer(
        "text of tokens",
        ("suite/token_text.py",),
        libraries=("transformers",),
        own=("runner.core",),
        loads=(),
    ),
    Layer(
        "oracle",
        under("suite", "oracle reported_logprobs sampling_reference"),
        libraries=("numpy", "torch", "transformers"),
        own=(
            *("runner.core", "runner.models", "runner.weights"),
            *("suite.record", "suite.sampling_reference", "suite.tolerance"),
        ),
        never=(
            *("runner.kernels", "runner.device", "runner.engine", "runner.executor"),
            *("runner.inputs", "runner.scheduler", "runner.blocks"),
        ),
    ),
    Layer(
        "report",
        under(
            "suite/report",
            "answer attribution_tables attribution_text bill_figures bill_tables break_even_figures "
            "cases chart choice compare_page comparison_text comparisons cost_hint data figures "
            "markdown page panel_bill panel_pays panel_requests panel_spans panel_timeline panel_tokens "
            "panel_uploads panels point prices request_figures samples scenario_panels span_figures "
            "span_tables tables timeline_figures token_figures token_tables upload_figures upload_totals "
            "wording",
        ),
        libraries=("numpy", "pandas", "plotly", "jinja2", "markupsafe"),
        own=(
            *("runner.core", "runner.inputs.arms", "runner.measure", "runner.spans"),
            *("suite.record", "suite.metrics"),
            *("suite.checks", "suite.control", "suite.summary", "suite.validity.rule", "suite.report"),
            *("suite.amplification", "suite.bill", "suite.ceilings", "suite.cost_tables", "suite.lanes"),
            *("suite.step_costs", "suite.cost_time", "suite.repeatable"),
            *("suite.attribution", "suite.break_even", "suite.comparison", "suite.ratios", "suite.verdict"),
            *("suite.case_label", "suite.compare_result", "suite.compare_runs", "suite.gate"),
        ),
        never=(*HEAVY, *MACHINERY, "runner.device", "suite.store", "suite.worker", "suite.oracle"),
        banned=("os", "pathlib", "io", "time", "datetime", "shutil", "tempfile", "glob", "subprocess"),
    ),
)


# ---- the checks, over any tree, so that they can be shown to find what they are for


def python_files(root: Path) -> list[str]:
    found = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return [path.relative_to(root).as_posix() for path in found]


def parse(root: Path, file: str) -> ast.Module:
    return ast.parse((root / file).read_text(encoding="utf-8"), file)


def imports(tree: ast.Module, file: str, known: set[str]) -> Iterator[str]:
    """Full names of all that is imported, at the top or inside a function, for types or for use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = module_of(file).split(".")[: -node.level]
                source = ".".join([*parents, *([source] if source else [])])
            for alias in node.names:
                member = f"{source}.{alias.name}"
                yield member if member in known else source


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def misplaced(root: Path, layers: tuple[Layer, ...]) -> list[str]:
    """Files without a place, or with two, and places without a file."""
    files = [file for file in python_files(root) if not file.endswith("/__init__.py")]
    placed = [file for layer in layers for file in layer.files]
    return [
        *(f"{file} has no layer" for file in files if file not in placed),
        *(f"{file} is in two layers" for file in sorted(set(placed)) if placed.count(file) > 1),
        *(f"{file} is no file" for file in placed if file not in files),
    ]


def direct_violations(root: Path, layers: tuple[Layer, ...]) -> list[str]:
    known = {module_of(file).removesuffix(".__init__") for file in python_files(root)}
    found = []
    for layer in layers:
        for file in layer.files:
            if (root / file).is_file():
                names = sorted(set(imports(parse(root, file), file, known)))
                found += [f"{file} imports {name}" for name in names if not _may_import(layer, name)]
    return found


def _may_import(layer: Layer, name: str) -> bool:
    top = name.split(".")[0]
    if top in PACKAGES:
        return within(name, layer.own) and not within(name, layer.not_own)
    if top in sys.stdlib_module_names:
        return not within(name, layer.banned)
    return top in layer.libraries


LIST_LOADED = """
import importlib, json, sys
found = []
for names in json.loads(sys.argv[1]):
    # Libraries stay for the layers that follow; only what is ours is imported afresh.
    for name in [name for name in sys.modules if name.split(".")[0] in ("runner", "suite")]:
        del sys.modules[name]
    before, loaded = set(sys.modules), {}
    for name in names:
        importlib.import_module(name)
        loaded[name] = sorted(set(sys.modules) - before)
        before |= set(loaded[name])
    found.append(loaded)
print(json.dumps(found))
"""


def indirect_violations(root: Path, *layers: Layer) -> list[str]:
    """What a fresh process loads beyond its layer's rights; each fault is told once, with its first module.

    Layers that share a process must be told apart by modules of ours only.
    """
    names = [
        [module_of(file) for file in layer.files if not file.endswith("__main__.py")] for layer in layers
    ]
    process = subprocess.run(
        [sys.executable, "-c", LIST_LOADED, json.dumps(names)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found: list[dict[str, list[str]]] = json.loads(process.stdout.splitlines()[-1])
    return [
        f"{module} loads {name}"
        for layer, loaded in zip(layers, found, strict=True)
        for module, others in loaded.items()
        for name in others
        if not _may_load(layer, name)
    ]


def _may_load(layer: Layer, name: str) -> bool:
    if within(name, layer.never):
        return False
    top = name.split(".")[0]
    is_free = top in PACKAGES or top in sys.stdlib_module_names or top == "__mp_main__"
    return is_free or layer.loads is None or top in layer.loads


def names_torch_cuda(root: Path) -> list[str]:
    """Files that reach torch.cuda by whatever spelling."""
    return [
        file
        for file in python_files(root)
        if any(_is_torch_cuda(node) for node in ast.walk(parse(root, file)))
    ]


def _is_torch_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch"
    if isinstance(node, ast.Import):
        return any(within(alias.name, ("torch.cuda",)) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return within(module, ("torch.cuda",)) or (
            module == "torch" and any(alias.name == "cuda" for alias in node.names)
        )
    return False


def opens_files(root: Path, file: str) -> bool:
    """Whether `open` is called, as a function or as a method."""
    calls = [node.func for node in ast.walk(parse(root, file)) if isinstance(node, ast.Call)]
    return any(
        (isinstance(called, ast.Name) and called.id == "open")
        or (isinstance(called, ast.Attribute) and called.attr in ("open", "write_text", "write_bytes"))
        for called in calls
    )


# ---- our own tree


def test_every_file_has_its_place() -> None:
    assert misplaced(ROOT, LAYERS) == []


def test_packages_themselves_hold_nothing_but_their_description() -> None:
    """Importing a module imports its packages: anything there would come along with every module."""
    for file in python_files(ROOT):
        if file.endswith("/__init__.py"):
            body = parse(ROOT, file).body
            assert all(isinstance(node, ast.Expr) for node in body), f"{file} holds code"


def test_direct_imports_follow_the_arrows() -> None:
    assert direct_violations(ROOT, LAYERS) == []


LIGHT = [layer for layer in LAYERS if "torch" not in layer.libraries]
WITH_TORCH = [layer for layer in LAYERS if "torch" in layer.libraries]


@pytest.mark.parametrize("layer", LIGHT, ids=lambda layer: layer.name)
def test_nothing_else_comes_along(layer: Layer) -> None:
    assert indirect_violations(ROOT, layer) == []


def test_nothing_of_ours_comes_along_with_what_may_load_torch() -> None:
    """In one process, since loading torch takes seconds."""
    assert indirect_violations(ROOT, *WITH_TORCH) == []


def test_only_one_file_names_torch_cuda() -> None:
    assert set(names_torch_cuda(ROOT)) <= {CUDA_FILE}


def test_the_report_opens_no_file() -> None:
    layer = next(layer for layer in LAYERS if layer.name == "report")
    assert [file for file in layer.files if opens_files(ROOT, file)] == []


# ---- the checks find what they are for

PLANTED = (
    Layer("pure", ("runner/pure.py", "runner/helper.py"), own=("runner.helper",), loads=(), never=("suite",)),
    Layer("heavy", ("runner/heavy.py",), libraries=("numpy",), own=("runner",), never=("runner.kernels",)),
    Layer("page", ("suite/page.py",), banned=("os", "time")),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A faultless little tree for PLANTED."""
    for package in ("runner", "suite", "runner/kernels"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text('"""A package."""\n', encoding="utf-8")
    plant(tmp_path, "runner/helper.py", "import json\n")
    plant(tmp_path, "runner/pure.py", "import runner.helper\n")
    plant(tmp_path, "runner/heavy.py", "import numpy\n")
    plant(tmp_path, "suite/page.py", "import math\n")
    return tmp_path


def plant(root: Path, file: str, source: str) -> None:
    (root / file).write_text(source, encoding="utf-8")


def test_a_faultless_tree_passes_every_check(tree: Path) -> None:
    assert misplaced(tree, PLANTED) == direct_violations(tree, PLANTED) == names_torch_cuda(tree) == []
    assert all(indirect_violations(tree, layer) == [] for layer in PLANTED)


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("runner/pure.py", "import numpy", "imports numpy"),
        ("runner/pure.py", "from numpy.typing import NDArray", "imports numpy.typing"),
        ("runner/pure.py", "def f():\n    import torch", "imports torch"),
        ("runner/pure.py", "if False:\n    from torch import nn", "imports torch"),
        ("runner/pure.py", "from runner import heavy", "imports runner.heavy"),
        ("runner/pure.py", "from . import heavy", "imports runner.heavy"),
        ("runner/pure.py", "from .heavy import thing", "imports runner.heavy"),
        ("runner/pure.py", "import suite.page", "imports suite.page"),
        ("runner/heavy.py", "from suite import page", "imports suite.page"),
        ("suite/page.py", "import os.path", "imports os.path"),
        ("suite/page.py", "from time import sleep", "imports time"),
    ],
)
def test_a_planted_import_is_found(file: str, source: str, fault: str, tree: Path) -> None:
    plant(tree, file, f"{source}\n")
    assert direct_violations(tree, PLANTED) == [f"{file} {fault}"]


def test_a_library_that_comes_along_is_found(tree: Path) -> None:
    plant(tree, "runner/helper.py", "import runner.other\n")
    plant(tree, "runner/other.py", "import numpy\n")
    found = indirect_violations(tree, PLANTED[0])
    assert "runner.pure loads numpy" in found


def test_a_module_of_ours_that_comes_along_is_found(tree: Path) -> None:
    plant(tree, "runner/kernels/deep.py", "")
    plant(tree, "runner/helper.py", "import runner.kernels.deep\n")
    plant(tree, "runner/heavy.py", "import runner.helper\n")
    assert indirect_violations(tree, PLANTED[1]) == [
        "runner.heavy loads runner.kernels",
        "runner.heavy loads runner.kernels.deep",
    ]


def test_a_new_file_without_a_place_is_found(tree: Path) -> None:
    plant(tree, "runner/kernels/new.py", "")
    assert misplaced(tree, PLANTED) == ["runner/kernels/new.py has no layer"]


def test_a_place_without_a_file_is_found(tree: Path) -> None:
    (tree / "runner/pure.py").unlink()
    assert misplaced(tree, PLANTED) == ["runner/pure.py is no file"]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.synchronize()",
        "import torch.cuda",
        "from torch import cuda",
        "from torch.cuda import Stream",
        "import torch.cuda.nvtx as nvtx",
    ],
)
def test_a_file_that_names_torch_cuda_is_found(source: str, tree: Path) -> None:
    plant(tree, "runner/heavy.py", f"{source}\n")
    assert names_torch_cuda(tree) == ["runner/heavy.py"]


@pytest.mark.parametrize("source", ["open('x')", "path.open()", "path.write_text('x')"])
def test_a_file_that_opens_files_is_found(source: str, tree: Path) -> None:
    assert not opens_files(tree, "suite/page.py")
    plant(tree, "suite/page.py", f"{source}\n")
    assert opens_files(tree, "suite/page.py")
