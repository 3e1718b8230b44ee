"""The house style, as far as a machine can see it: sizes, docstrings, purity, forbidden words."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kafka_ds", "broker", "spark_conf")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
# What a pure module may import of the standard library: nothing that waits, draws lots or meets the machine.
PURE_STANDARD_LIBRARY = {
    "__future__", "abc", "array", "ast", "base64", "binascii", "bisect", "collections", "contextlib", "copy",
    "dataclasses", "datetime", "decimal", "difflib", "enum", "errno", "functools", "gzip", "heapq", "hashlib", "hmac",
    "io", "ipaddress", "itertools", "json", "keyword", "math", "operator", "re", "string", "struct", "sys",
    "textwrap", "types", "typing", "urllib.parse", "uuid", "zlib",
}  # fmt: skip
# Data libraries: they compute on what they are given.
PURE_LIBRARIES = {
    "numpy", "pyarrow", "numba", "zstandard", "lz4", "lz4.frame", "cramjam", "isal", "google_crc32c", "crcmod",
    "crcmod.predefined", "re2",
}  # fmt: skip
# Built of three parts so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_says_whether_it_is_pure(path: Path) -> None:
    if path.name == "__init__.py" and not path.read_text().strip():
        return
    assert docstring_of(path).startswith(("Pure:", "Shell:")), (
        "docstring begins with Pure: or Shell:"
    )


def modules_imported(tree: ast.Module) -> set[str]:
    """Modules imported when the module is loaded or run; imports for the type checker alone do not count."""
    found: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        pending.extend(ast.iter_child_nodes(node))
    return found


def is_pure_file(module: str) -> bool | None:
    """Whether a module of ours is pure; None when it is not ours. Packages without a text are neither."""
    base = ROOT / Path(*module.split("."))
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    if module.split(".")[0] not in PACKAGES or not path.exists():
        return None
    return not path.read_text().strip() or docstring_of(path).startswith("Pure:")


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if docstring_of(p).startswith("Pure:")], ids=name_of
)
def test_a_pure_module_imports_nothing_impure(path: Path) -> None:
    for module in modules_imported(ast.parse(path.read_text())):
        ours = is_pure_file(module)
        if ours is not None:
            assert ours, f"{module} is a shell"
        elif module.split(".")[0] in sys.stdlib_module_names:
            assert module in PURE_STANDARD_LIBRARY or module.startswith("collections."), module
        else:
            assert module in PURE_LIBRARIES or module.split(".")[0] in {
                "numpy",
                "pyarrow",
                "numba",
            }, module


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_file_needs_itself_by_way_of_others() -> None:
    """Types count, too: what is understood together alone is one file, or says by a Protocol what it needs."""
    ours = {module_of(path): path for path in SOURCES}
    needs: dict[str, set[str]] = {module: set() for module in ours}
    for module, path in ours.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                needs[module].update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    needs[module].add(inner if inner in ours else node.module)
        needs[module] = {each for each in needs[module] if each in ours and each != module}
    TopologicalSorter(needs).prepare()  # CycleError names the way around


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name_of)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES_MAX
    assert not UNFINISHED.search(text)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_function_fits_on_a_page(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


def test_the_broker_process_stays_small() -> None:
    """Importing the broker brings in none of the libraries that belong to the worker (139 MiB of memory)."""
    import subprocess

    heavy = "pyarrow numba numpy deltalake fsspec s3fs pandas pyspark"
    code = (
        "import sys, broker.__main__, broker.node, broker.handlers; "
        f"print(' '.join(m for m in {heavy.split()!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
