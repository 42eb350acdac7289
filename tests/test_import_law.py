"""The law between the layers: an import goes only downwards. ARCHITECTURE.md describes it."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# What each package may import, in addition to itself and the outside world.
ALLOWED: dict[str, set[str]] = {
    "deeplink": set(),
    "diopi": {"deeplink"},
    "torch_dipu": {"deeplink", "diopi"},
    "dlinfer": {"deeplink", "diopi"},
    "dicp": {"deeplink", "diopi"},
    "op_tools": {"deeplink"},
    "ditorch": {"deeplink"},
    "deeplink_vendors": {
        "deeplink", "diopi", "torch_dipu", "dlinfer", "dicp", "op_tools", "ditorch",
    },
}  # fmt: skip
VENDORS = "deeplink_vendors"

# Modules and packages inside a package: each may import those before it. What is not named stands
# above all that are: it may import them, and none of them imports it.
ORDER: dict[str, tuple[str, ...]] = {
    "deeplink": (
        "i18n", "errors", "settings", "console", "vendor", "identity", "compare", "judge",
        "process", "native", "caches", "testing", "scaffold", "run", "inspection", "commands",
    ),
    "diopi.conformance": (
        "cases", "own", "models", "outside", "execution", "checks", "planning", "device_config",
        "workers", "results",
    ),
    "torch_dipu": (
        "runtime", "ipc", "dipu", "torch_internals", "op_patterns", "c_kernels", "routes", "debug",
    ),
    "dlinfer": (
        "layout", "registry", "fast_call", "kernels", "op", "fused", "ops", "cache", "weights",
        "capture", "conformance", "observe", "framework",
    ),
    "dicp": (
        "torch_internals", "conversion", "emitter", "fused", "backend", "dynamo_bridge",
        "conformance",
    ),
    "dicp.dynamo_bridge": (
        "options", "passes", "specialize", "partition", "codegen", "report", "disk_cache", "run",
        "load", "tuning", "debug", "cache",
    ),
    "op_tools": (
        "core", "tensors", "capture", "compare", "timing", "tools", "replay", "one_iter",
        "diagnosis",
    ),
}  # fmt: skip
# Their packages import the package itself, whose __init__ imports none of them.
PLAIN_ROOTS = ("deeplink", "torch_dipu")

# Packages inside these that nothing of theirs imports.
UNORDERED = {"utils"}

# Packages that read records of calls import them by the interface of the package capture alone.
READERS = ("one_iter", "diagnosis")
RECORDS = "op_tools.capture"

# Libraries of chip vendors: only inside a vendor's folder.
VENDOR_LIBRARIES = {
    "acl", "bangtorch", "cupy", "flash_attn", "intel_extension_for_pytorch", "onnx", "onnxruntime",
    "openvino", "pynvml", "tbe",
    "torch_br", "torch_gcu", "torch_mlu", "torch_musa", "torch_npu", "torch_sdaa", "torch_supa",
    "torch_xla", "torch_xmlir", "torchada", "triton",
}  # fmt: skip

ENVIRONMENT = {"environ", "environb", "getenv", "putenv", "unsetenv"}
SETTINGS = Path("deeplink/settings")
AUTOLOAD = Path("deeplink/autoload.py")  # runs in every `import torch`: it imports no settings
MAY_PRINT = {"report.py", "terminal.py", "cli.py", "__main__.py"}


def violations(src: Path) -> list[str]:
    """Every breach under a source tree, as `file:line: what`."""
    return [
        f"{path.relative_to(src)}:{line}: {what}"
        for path in sorted(src.rglob("*.py"))
        for line, what in _breaches(path.relative_to(src), path.read_text("utf-8"))
    ]


def _breaches(path: Path, text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    # most files hold none of these words: half a million nodes are not visited for them
    suspicious = (
        path.parent != SETTINGS and path != AUTOLOAD and any(word in text for word in ENVIRONMENT)
    )
    for node in ast.walk(tree):
        for name in _imported(path, node):
            what = _judge_import(path, name) or _judge_order(path, name)
            if what:
                yield node.lineno, what  # type: ignore[attr-defined]
        if suspicious and _touches_environment(node):
            yield node.lineno, "os.environ outside deeplink/settings"  # type: ignore[attr-defined]
    if path.name not in MAY_PRINT and "print" in text:
        for line in _prints(tree):
            yield line, "print outside a report, a cli or a main()"


def _imported(path: Path, node: ast.AST) -> list[str]:
    """Full names of the modules that a node imports; those written as a string, too."""
    if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Call)):
        return []
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            # the package of the file, and one step up for each dot after the first
            package = path.parent.parts[: len(path.parent.parts) - node.level + 1]
            base = ".".join([*package, *([base] if base else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def _judge_import(path: Path, name: str) -> str:
    package, target = path.parts[0], name.split(".")[0]
    if package == VENDORS:
        # a vendor is a folder of its own: it does not know the others
        own = [VENDORS, path.parts[1]] if len(path.parts) > 2 else [VENDORS]
        sideways = target == VENDORS and name.split(".")[:2] != own
        return f"{'/'.join(own)} imports {name}" if sideways else ""
    if target in VENDOR_LIBRARIES:
        return f"{name}, a vendor's library, outside {VENDORS}"
    if package not in ALLOWED:
        return f"{package} is in no layer: add it to ALLOWED and to ARCHITECTURE.md"
    if target in ALLOWED and target != package and target not in ALLOWED[package]:
        return f"{package} imports {name}; allowed: {', '.join(sorted(ALLOWED[package])) or 'none'}"
    return ""


def is_module(name: str) -> bool:
    """Whether a full name is a module of the tree, or a name in a module of a package."""
    path = SRC.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.parent.with_suffix(".py").exists()


def _judge_order(path: Path, name: str) -> str:
    """A breach of the order inside one package; empty: none."""
    module = path.with_suffix("").parts
    for package, order in ORDER.items():
        depth = package.count(".") + 1
        if len(module) <= depth or ".".join(module[:depth]) != package:
            continue
        own, target = module[depth], name.split(".")
        if own not in order or ".".join(target[:depth]) != package:
            continue
        if own in READERS and name.startswith(f"{RECORDS}.") and is_module(name):
            return f"{own} imports {name}; allowed: the names of {RECORDS}"
        child = target[depth] if len(target) > depth else ""
        if child not in order:
            if package in PLAIN_ROOTS and not _is_child(package, child):
                continue
            return f"{own} imports {name}, which is in no package of {package}"
        if order.index(child) > order.index(own):
            allowed = ", ".join(order[: order.index(own)]) or "none"
            return f"{own} imports {name}; allowed: {allowed}"
    return ""


def _is_child(package: str, name: str) -> bool:
    path = SRC.joinpath(*package.split("."), name)
    return bool(name) and (path.is_dir() or path.with_suffix(".py").exists())


def cycles(src: Path) -> list[list[str]]:
    """Modules that import each other, at import or in a function. Imports for types alone, and
    modules that are loaded by their name as a string, do not count.
    """
    files = {_name(path.relative_to(src)): path for path in sorted(src.rglob("*.py"))}
    graph = {name: _neighbours(path.relative_to(src), path, files) for name, path in files.items()}
    while leaves := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    return _components(graph)


def _components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph
    }
    return sorted(list(group) for group in groups if group)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = (graph[todo.pop()] & graph.keys()) - found
        found |= new
        todo.extend(new)
    return found


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _neighbours(path: Path, file: Path, files: Mapping[str, Path]) -> set[str]:
    """The modules that a module imports."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(file.read_text("utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        for name in _imported(path, node) if not isinstance(node, ast.Call) else ():
            found.add(name if name in files else name.rpartition(".")[0])
        todo.extend(ast.iter_child_nodes(node))
    return found & files.keys() - {_name(path)}


def _touches_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == "os" and node.attr in ENVIRONMENT
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in ENVIRONMENT for alias in node.names)
    return False


def _prints(tree: ast.AST) -> Iterator[int]:
    """Lines of print calls that are not in a function named main."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            yield node.lineno
        yield from _prints(node)


def test_the_source_tree_keeps_the_law() -> None:
    assert violations(SRC) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(SRC) == []


@pytest.mark.parametrize("package", ORDER)
def test_every_package_has_its_place_in_the_order(package: str) -> None:
    folder = SRC.joinpath(*package.split("."))
    inside = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert inside - set(ORDER[package]) <= UNORDERED


def test_a_planted_cycle_is_caught(tmp_path: Path) -> None:
    (tmp_path / "dicp").mkdir()
    (tmp_path / "dicp/a.py").write_text("import torch\nfrom dicp import b")
    (tmp_path / "dicp/b.py").write_text("def f():\n    from dicp.c import g")
    (tmp_path / "dicp/c.py").write_text("import dicp.a")
    (tmp_path / "dicp/d.py").write_text("import dicp.a")
    assert cycles(tmp_path) == [["dicp.a", "dicp.b", "dicp.c"]]


def test_imports_for_types_are_no_cycle(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b")
    (tmp_path / "b.py").write_text("if TYPE_CHECKING:\n    import a")
    assert cycles(tmp_path) == []


PLANTED = [
    ("deeplink/a.py", "import diopi", "deeplink imports diopi; allowed: none"),
    ("deeplink/a.py", "from deeplink_vendors import cpu", "deeplink imports deeplink_vendors.cpu"),
    ("diopi/a.py", "from torch_dipu.dipu import device", "diopi imports torch_dipu.dipu.device"),
    ("torch_dipu/a.py", "def f():\n    import dicp", "torch_dipu imports dicp; allowed: deeplink"),
    ("dicp/a.py", "import dlinfer.ops", "dicp imports dlinfer.ops; allowed: deeplink, diopi"),
    ("dlinfer/a.py", "import dicp", "dlinfer imports dicp"),
    ("ditorch/a.py", "import torch_dipu", "ditorch imports torch_dipu; allowed: deeplink"),
    ("op_tools/a.py", "import ditorch", "op_tools imports ditorch; allowed: deeplink"),
    ("op_tools/a.py", "import diopi", "op_tools imports diopi"),
    ("op_tools/core/a.py", "import op_tools.tensors.b", "allowed: none"),
    ("op_tools/tensors/a.py", "from op_tools.tools import guard", "allowed: core"),
    ("op_tools/capture/a.py", "from op_tools import Guard", "in no package of op_tools"),
    ("deeplink/settings/a.py", "from deeplink.native import build", "allowed: i18n, errors"),
    ("deeplink/errors.py", "def f():\n    from deeplink import settings", "allowed: i18n"),
    ("deeplink/settings/a.py", "from deeplink import cli", "in no package of deeplink"),
    ("dlinfer/kernels.py", "from dlinfer.op import op", "allowed: layout, registry, fast_call"),
    ("torch_dipu/dipu/a.py", "from torch_dipu import debug", "allowed: runtime, ipc"),
    (
        "dicp/backend.py",
        "from dicp.dynamo_bridge.compile_fx import compile_fx",
        "allowed: torch_int",
    ),
    ("dicp/dynamo_bridge/passes/a.py", "from dicp.dynamo_bridge import cache", "allowed: options"),
    ("dicp/dynamo_bridge/run.py", "from dicp.dynamo_bridge.build import build", "in no package of"),
    ("diopi/conformance/cases/a.py", "import diopi.conformance.results.page", "allowed: none"),
    (
        "op_tools/diagnosis/a.py",
        "from op_tools.capture.encoding import Part",
        "allowed: the names of op_tools.capture",
    ),
    (
        "ditorch/a.py",
        "import importlib\nimportlib.import_module('torch_dipu')",
        "ditorch imports torch_dipu",
    ),
    ("deeplink_vendors/acme/a.py", "import deeplink_vendors.cpu", "acme imports deeplink_vendors"),
    ("deeplink_vendors/acme/a.py", "from .. import cpu", "acme imports deeplink_vendors.cpu"),
    ("ditorch/a.py", "import torch_npu", "torch_npu, a vendor's library, outside"),
    ("stray/a.py", "import torch", "stray is in no layer"),
    ("ditorch/a.py", "import os\nos.environ['A']", "os.environ outside deeplink/settings"),
    ("ditorch/a.py", "from os import getenv", "os.environ outside deeplink/settings"),
    ("ditorch/a.py", "def f():\n    print(1)", "print outside a report, a cli or a main()"),
]


@pytest.mark.parametrize(("name", "source", "what"), PLANTED)
def test_a_planted_breach_is_caught(tmp_path: Path, name: str, source: str, what: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(source)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{name}:")
    assert what in found


KEPT = [
    ("deeplink/settings/rows.py", "import os\nos.environ.get('A')"),
    ("torch_dipu/a.py", "import diopi.op\nfrom deeplink.errors import BuildError\nimport torch"),
    ("torch_dipu/a.py", "from torch_dipu.dipu import device\nfrom . import runtime"),
    ("torch_dipu/build.py", "def main():\n    print('built')"),
    ("op_tools/core/terminal.py", "print(1)"),
    ("op_tools/diagnosis/a.py", "from op_tools.capture import Archive"),
    ("deeplink/run/a.py", "from deeplink import __version__, settings"),
    ("torch_dipu/dipu/a.py", "import torch_dipu\nfrom torch_dipu import _C, ipc"),
    ("dicp/dynamo_bridge/build.py", "from dicp.dynamo_bridge.debug import blame"),
    ("op_tools/tools/a.py", "from op_tools.core.call import Call\nimport op_tools.tools.b"),
    ("deeplink_vendors/acme/a.py", "import torch_npu, torch_dipu, dicp\nfrom . import kernels"),
    ("deeplink_vendors/acme/a.py", "from deeplink_vendors.acme import kernels"),
]


@pytest.mark.parametrize(("name", "source"), KEPT)
def test_what_the_law_allows_is_not_reported(tmp_path: Path, name: str, source: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(source)
    assert violations(tmp_path) == []
