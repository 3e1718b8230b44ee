"""The house style, as far as a machine can see it: sizes, docstrings, purity, forbidden words."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import ForwardRef, get_args, get_origin

from broker.cleaner import rpc as cleaner_rpc
from broker.worker import rpc as worker_rpc
from kafka_ds.ipc.request import Request

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kafka_ds", "broker", "spark_conf")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
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
    "crcmod.predefined", "re2", "pyiceberg.conversions", "pyiceberg.partitioning", "pyiceberg.schema",
    "pyiceberg.table.name_mapping", "pyiceberg.transforms", "pyiceberg.types", "google.protobuf",
    "google.protobuf.message",
}  # fmt: skip
# Built of three parts so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Most rules look into most files.
@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def docstring_of(path: Path) -> str:
    return ast.get_docstring(tree_of(path)) or ""


def is_pure(path: Path) -> bool:
    return docstring_of(path).startswith("Pure:")


def offenders(rule: Callable[[Path], object], paths: Iterable[Path]) -> dict[str, object]:
    """What a rule says against files, by their names: one test a rule, as there are a thousand files."""
    return {name_of(path): said for path in paths if (said := rule(path))}


def test_a_module_says_whether_it_is_pure() -> None:
    def says_nothing(path: Path) -> bool:
        is_empty_package = path.name == "__init__.py" and not text_of(path).strip()
        return not is_empty_package and not docstring_of(path).startswith(("Pure:", "Shell:"))

    assert not offenders(says_nothing, SOURCES), "docstring begins with Pure: or Shell:"


def test_a_module_says_in_eight_lines_what_it_is_for() -> None:
    def lines_too_many(path: Path) -> int:
        return max(0, len(docstring_of(path).splitlines()) - 8)

    # A handler opens with its contract.
    modules = [path for path in SOURCES if "broker/handlers/" not in path.as_posix()]
    assert not offenders(lines_too_many, modules)


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
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(each for each in inside if is_pure_file(each) is not None)
        pending.extend(ast.iter_child_nodes(node))
    return found


def is_pure_file(module: str) -> bool | None:
    """Whether a module of ours is pure; None when it is not ours. Packages without a text are neither."""
    base = ROOT / Path(*module.split("."))
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    if module.split(".")[0] not in PACKAGES or not path.exists():
        return None
    return not text_of(path).strip() or is_pure(path)


def is_impure(module: str) -> bool:
    """Whether a pure module must not import it."""
    ours = is_pure_file(module)
    if ours is not None:
        return not ours
    package = module.split(".")[0]
    if package in sys.stdlib_module_names:
        return module not in PURE_STANDARD_LIBRARY and not module.startswith("collections.")
    return module not in PURE_LIBRARIES and package not in {"numpy", "pyarrow", "numba"}


def test_a_pure_module_imports_nothing_impure() -> None:
    def impure_imports(path: Path) -> list[str]:
        return sorted(filter(is_impure, modules_imported(tree_of(path))))

    pure = [path for path in SOURCES if is_pure(path)]
    assert pure
    assert not offenders(impure_imports, pure)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_file_needs_itself_by_way_of_others() -> None:
    """Imports for types count, too: files that need each other are one file, or use a Protocol."""
    ours = {module_of(path): path for path in SOURCES}
    needs: dict[str, set[str]] = {module: set() for module in ours}
    for module, path in ours.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                needs[module].update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    needs[module].add(inner if inner in ours else node.module)
        needs[module] = {each for each in needs[module] if each in ours and each != module}
    TopologicalSorter(needs).prepare()  # CycleError names the way around


def test_no_file_is_left_unfinished() -> None:
    assert not offenders(lambda path: UNFINISHED.findall(text_of(path)), SOURCES + TESTS)


def test_a_function_fits_on_a_page() -> None:
    def long_functions(path: Path) -> list[str]:
        found = []
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{node.name} has {lines} lines")
        return found

    assert not offenders(long_functions, SOURCES + TESTS)


def test_the_broker_process_stays_small() -> None:
    """Importing the broker brings in none of the libraries that belong to the worker (139 MiB of memory)."""
    heavy = "pyarrow numba numpy deltalake pandas pyspark"
    code = (
        "import sys, broker.commands, broker.broker_server, broker.handlers; "
        f"print(' '.join(m for m in {heavy.split()!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_worker_does_without_pandas() -> None:
    """Which is installed here, and which Arrow takes for needed."""
    code = (
        "import sys; from broker.worker.main import PandasBlocker; sys.meta_path.insert(0, PandasBlocker()); "
        "import broker.worker.service; assert 'pyarrow' in sys.modules and 'pandas' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# Packages that are imported under another name than they are installed by.
IMPORTED_AS = {
    "google-crc32c": "google_crc32c",
    "google-re2": "re2",
    "prometheus-client": "prometheus_client",
    "protobuf": "google.protobuf",
    "PyJWT": "jwt",
}


def test_each_dependency_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=!~ \[]", each)[0] for each in project["dependencies"]]
    source = "\n".join(path.read_text() for path in SOURCES)
    idle = [
        name
        for name in names
        if not re.search(rf"^\s*(import|from) {IMPORTED_AS.get(name, name)}\b", source, re.M)
    ]
    assert names and not idle


def test_no_class_has_anothers_name() -> None:
    """Nor one that differs by an underscore, nor has an alias of a type, but for `T`, and for what only compiled loops
    tell from `Any`.
    """

    def names(tree: ast.Module) -> Iterable[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield node.name
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if ast.unparse(node.value) != "Any":
                    yield from (each.id for each in targets if isinstance(each, ast.Name))

    places: dict[str, list[str]] = {}
    for path in SOURCES:
        # A constant is in capitals.
        for name in filter(re.compile(r"_?[A-Z]\w*[a-z]").match, names(tree_of(path))):
            places.setdefault(name.lstrip("_"), []).append(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


# A draft of a partition's change, and what a leader and a session share.
SET_BY_OTHERS = {"PartitionChange", "SessionReader"}


def attributes_set(node: ast.AST) -> Iterable[tuple[str, str, int]]:
    """Object, attribute and line of each assignment to an attribute."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Attribute):
                        yield ast.unparse(one.value), one.attr, one.lineno


def test_an_object_is_changed_by_its_own_methods() -> None:
    """But for records: what a class declares in its body, such as a message's fields, may be set by others."""
    declared: set[str] = set()
    owners: dict[str, set[tuple[Path, str]]] = {}
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                fields_ = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
                declared.update(each.id for each in fields_ if isinstance(each, ast.Name))
                for owner, name, _ in attributes_set(node):
                    if owner == "self":
                        owners.setdefault(name, set()).add((path, node.name))

    def set_from_outside(path: Path) -> list[str]:
        return [
            f"{line}: {owner}.{name}"
            for owner, name, line in attributes_set(tree_of(path))
            if owner not in ("self", "cls") and name in owners.keys() - declared
            if path not in {place for place, _ in owners[name]}
            if not SET_BY_OTHERS & {each for _, each in owners[name]}
        ]

    assert not offenders(set_from_outside, SOURCES)


def test_requests_and_answers_are_frozen_dataclasses() -> None:
    """What crosses between processes has names, types and one meaning; lists answer for several partitions."""
    asked = [
        each
        for module in (worker_rpc, cleaner_rpc)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Request) and each is not Request
    ]
    values = list(asked)
    for each in asked:
        (answer,) = get_args(each.__orig_bases__[0])
        if isinstance(answer, ForwardRef):
            answer = eval(answer.__forward_arg__, vars(sys.modules[each.__module__]))
        (answer,) = get_args(answer) if get_origin(answer) is list else (answer,)
        values += get_args(answer) or [answer]
    assert len(asked) > 20
    assert not [
        each
        for each in values
        if each not in (None, type(None))
        if not (is_dataclass(each) and each.__dataclass_params__.frozen)
        or any("Any" in str(field.type) for field in fields(each))
    ]


def test_files_are_nouns() -> None:
    nouns = {"missing"}
    assert not [
        name_of(path) for path in SOURCES if path.stem.endswith("ing") and path.stem not in nouns
    ]


def test_a_constructor_takes_eight_things_at_most() -> None:
    def long(path: Path) -> list[str]:
        return [
            node.name
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ClassDef)
            for each in node.body
            if isinstance(each, ast.FunctionDef) and each.name == "__init__"
            if len(each.args.args) + len(each.args.kwonlyargs) - 1 > 8
        ]

    assert not offenders(long, SOURCES)


# Where requests and responses have a topic's partitions one by one.
TOPIC_AND_PARTITION_APART_MAX = 23


def test_a_partition_is_one_value() -> None:
    """TopicPartition, or TopicIdPartition: a function that takes topic and partition apart says one thing in two."""

    def apart(path: Path) -> list[str]:
        return [
            node.name
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for taken in [{each.arg: each.annotation for each in node.args.args}]
            if {"topic", "partition"} <= taken.keys()
            if ast.unparse(taken["partition"] or node) == "int"
        ]

    found = offenders(apart, SOURCES)
    assert sum(map(len, found.values())) <= TOPIC_AND_PARTITION_APART_MAX, found


def test_a_log_line_says_by_its_text_what_happened() -> None:
    """A line that was made elsewhere is passed on as "%s"."""
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log"}

    def mute(path: Path) -> list[str]:
        formats = [
            node.args[node.func.attr == "log"]
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if node.func.attr in levels and "log" in ast.unparse(node.func.value).lower()
        ]
        texts = [each.value for each in formats if isinstance(each, ast.Constant)]
        return [
            text
            for text in texts
            if text != "%s" and not re.search("[A-Za-z]{2}", re.sub(r"%[-.\d]*[a-z]", "", text))
        ]

    assert not offenders(mute, SOURCES)


# Words of the names table that are gone, and must not come back.
GONE = re.compile(
    r"\b(anew|mended|walking|unpacking|relaying|entrance|noting|standstill|deposing|outbox|surroundings|placing"
    r"|SetBack|OtherQuery|WasAborted|OffsetNotes|Resting|Outlook|Survey|Verdict)\b"
)


def test_words_that_are_gone_stay_away() -> None:
    assert not offenders(lambda path: GONE.findall(text_of(path)), SOURCES)


PRIVATE_ACCESSES_MAX = 0


def imported_from_product(tree: ast.Module) -> set[str]:
    """The names that a module gives to what it imports from the product."""
    return {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES))
        for each in node.names
        if isinstance(node, ast.ImportFrom) or each.name.startswith(PACKAGES)
    }


def test_tests_look_at_what_is_public() -> None:
    """But for those that change the code itself, to see whether the simulation notices.

    A named tuple's `_replace` is public, and a module may look into its own classes. A name in a text, as
    `monkeypatch.setattr` takes it, counts as well, and so does one that is imported. So does a private name of a
    product module that has it no more.
    """
    attribute = re.compile(r"(?:self\.|def |class )(_[A-Za-z]\w*)")
    private = set(attribute.findall("".join(map(text_of, SOURCES)))) - {"_replace"}
    private |= set(re.findall(r"(?m)^(_[A-Za-z]\w*)(?::.*)? = ", "".join(map(text_of, SOURCES))))

    private -= {"_TIMED_OUT"}  # An error of librdkafka is called so, too.

    def names(node: ast.AST) -> Iterable[str]:
        if isinstance(node, ast.Attribute):
            if ast.unparse(node.value) not in ("self", "cls", "super()"):
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            texts = (each.value for each in node.args if isinstance(each, ast.Constant))
            yield from (each.rpartition(".")[2] for each in texts if isinstance(each, str))

    def is_of_product(node: ast.AST, modules: set[str]) -> bool:
        return isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules

    found = [
        f"{name_of(path)}:{node.lineno}: {name}"
        for path in TESTS
        if not path.stem.endswith("mutations")
        for modules in [imported_from_product(tree_of(path))]
        for own in [set(attribute.findall(text_of(path)))]
        for node in ast.walk(tree_of(path))
        for name in names(node)
        if name in private - own
        or (re.match("_[A-Za-z]", name) and name != "_replace" and is_of_product(node, modules))
    ]
    assert len(found) <= PRIVATE_ACCESSES_MAX, found


def test_stores_of_tests_are_scripted() -> None:
    """There is one in memory and one in a folder (tests/fakes/store.py), which have the simulation's time there."""

    def stores(path: Path) -> list[int]:
        return [
            node.lineno
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.FunctionDef) and node.name == "put_if_absent"
        ]

    assert [*offenders(stores, TESTS)] == ["tests/fakes/store.py"]


# Of these some stand for Java's objects, and some for modules.
NAMESPACES_MAX = 53


def test_what_stands_for_a_class_of_ours_is_that_class() -> None:
    """Or a fake of tests/fakes, whose attributes have names and types."""

    def namespaces(path: Path) -> list[int]:
        return [
            node.lineno
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "SimpleNamespace"
        ]

    found = offenders(namespaces, TESTS)
    assert sum(map(len, found.values())) <= NAMESPACES_MAX, found


def test_no_test_imports_another() -> None:
    """What several tests use is a module of its own."""
    for path in TESTS:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                module = str(node.module).rpartition(".")[2]
                assert not module.startswith("test_"), f"{name_of(path)} imports {node.module}"


def functions_of(path: Path, *, lines: int = 4) -> Iterable[tuple[str, str]]:
    """Each function of so many lines or more without its name, docstring and decorators; and where it stands."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [each for each in node.body if not is_text(each)]
            if (node.end_lineno or 0) - node.lineno + 1 >= lines and body:
                said = ast.dump(node.args) + "".join(map(ast.dump, body))
                yield said, f"{name_of(path)}:{node.lineno}"


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_no_function_is_written_twice() -> None:
    """But for short ones."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for said, place in functions_of(path, lines=10):
            places.setdefault(said, []).append(place)
    assert not [found for found in places.values() if len(found) > 1]


def test_no_helper_of_tests_is_written_twice() -> None:
    """What several modules need is in tests/fakes, a conftest.py, or a module of theirs."""
    places: dict[str, list[str]] = {}
    for path in TESTS:
        for said, place in functions_of(path):
            places.setdefault(said, []).append(place)
    assert not [found for found in places.values() if len(found) > 1]


def test_no_class_of_the_tests_has_anothers_name() -> None:
    places: dict[str, list[str]] = {}
    for path in TESTS:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_apache_kafka_is_started_in_one_place() -> None:
    started = [name_of(path) for path in TESTS if '"kafka.' + 'Kafka"' in text_of(path)]
    assert started == ["tests/apache_kafka.py"]
