"""What modules that can be compiled may not do, as far as their text shows it: `make test-compiled` finds the rest."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from broker.compiled.build_files import ROOT, source_files
from broker.compiled.modules import MODULES
from broker.compiled.self_test import PROGRAM

FILES = {name: ROOT / f"{name.replace('.', '/')}.py" for name in MODULES}
TREES = {name: ast.parse(file.read_text()) for name, file in FILES.items()}


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("(")[0].split("[")[0].rpartition(".")[2]


def is_of_python(base: ast.expr) -> bool:
    """Whether mypyc leaves such a class as it is, so that others may inherit from it."""
    return last_name(base) in ("NamedTuple", "Exception", "IntEnum", "Enum", "Protocol")


def test_nothing_else_inherits_from_their_classes() -> None:
    """An interpreted class cannot: its module could not be imported, and no broker would start."""
    compiled = {
        each.name
        for tree in TREES.values()
        for each in classes(tree)
        if not any(is_of_python(base) for base in each.bases)
    }
    inherit = [
        f"{file.relative_to(ROOT)}: {each.name} inherits from {last_name(base)}"
        for file in source_files(ROOT)
        if file not in FILES.values()
        for each in classes(ast.parse(file.read_text()))
        for base in each.bases
        if last_name(base) in compiled
    ]
    assert compiled and not inherit


@pytest.mark.parametrize("name", MODULES)
def test_an_exception_has_a_name_of_its_own(name: str) -> None:
    """Compiled, a name of a function has one type: that of the first exception."""
    for function in ast.walk(TREES[name]):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
            assert all(len(each) == 1 for each in kinds.values()), (function.name, kinds)


@pytest.mark.parametrize("name", MODULES)
def test_none_of_their_classes_is_a_dataclass_with_slots(name: str) -> None:
    """Python makes a second class for it, of which compiled code knows nothing."""
    for each in classes(TREES[name]):
        assert not any("slots=True" in ast.unparse(d) for d in each.decorator_list), each.name


@pytest.mark.parametrize("name", MODULES)
def test_none_of_them_drives_the_event_loop(name: str) -> None:
    """uvloop does not return what asyncio's annotations say, and compiled code insists."""
    calls = (node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call))
    readers = {"add_reader", "remove_reader", "add_writer", "remove_writer"}
    assert not readers & {last_name(each) for each in calls}


@pytest.mark.parametrize("name", PROGRAM)
def test_what_the_self_test_imports_is_there(name: str) -> None:
    assert (ROOT / f"{name.replace('.', '/')}.py").exists()
