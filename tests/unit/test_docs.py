"""Generated pages match the code, paths named on pages exist, and code examples on pages are accepted."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from broker import protocol_doc
from broker.cli import page as command_page
from kafka_ds.sink.options import LOAD_OPTIONS, SINK_OPTIONS, parse_sink_options
from kafka_ds.source.options import options_doc
from kafka_ds.source.options.options import OPTIONS, parse_options
from tests.pages import own_blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LIMITATION_CHARACTERS_MAX = 1_000
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
CODE = [
    path
    for top in ("broker", "kafka_ds", "spark_conf", "tests")
    for path in (ROOT / top).rglob("*.py")
]
# One suffix each, so that `tier/copying/copier.py`, `copying/copier.py` and `copier.py` are all its names.
FILES = {
    "/".join(path.relative_to(ROOT).parts[first:])
    for path in (*CODE, *DOCS.rglob("*"))
    for first in range(len(path.relative_to(ROOT).parts))
}


TESTS = {
    name
    for path in CODE
    if path.name.startswith("test_")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


def braces_expanded(name: str) -> list[str]:
    """As the shell does with `test_{a,b}.py`."""
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return ["".join(chosen) for chosen in product(*parts)]


def anchors_of(page: str) -> set[str]:
    """Those that GitHub gives to headings, and those that are written."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    given = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return given | set(re.findall(r'<a id="([^"]+)">', page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"(?<![\w{}./*-])(?:\.\./)*([\w{},./-]+\.py)\b", page.read_text())
    made = set(re.findall(r"^```python title=\"(\S+)\"$", page.read_text(), re.MULTILINE))
    assert {file for name in named for file in braces_expanded(name)} - FILES - made == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    """One of its name, or where it is cut off one that begins so."""
    for name, cut in re.findall(r"`(test_\w+)(…?)`", page.read_text()):
        assert name in TESTS or (cut and any(test.startswith(name) for test in TESTS)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target.read_text()), link


def test_each_package_that_we_depend_on_has_its_reason() -> None:
    """And of none that is not needed any more there still is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    wanted += (ROOT / "tests" / "fuzz" / "requirements.txt").read_text().splitlines()
    site = (DOCS / "site" / "requirements.txt").read_text()
    wanted += site.partition("# What those need.")[0].splitlines()
    needed = {re.split(r"[\[<>=]", line)[0] for line in wanted if not line.startswith("#")}
    page = (DOCS / "decisions" / "0005-packages.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")][2:]
    named = {name.strip() for row in rows for name in re.sub(r"\(.*\)", "", row).split(",")}
    assert named == needed


def test_each_limitation_can_be_read() -> None:
    """Figures belong into benchmarks.md, long stories into proof.md."""
    rows = [
        line for line in (DOCS / "limitations.md").read_text().splitlines() if line.startswith("| ")
    ]
    assert len(rows) > 50
    for row in rows:
        assert len(row) <= LIMITATION_CHARACTERS_MAX, row


# Spark's own.
OTHERS_MESSAGES = {"Failed to find data source: kafka_ds", "Python worker failed to connect back"}


def test_the_messages_that_troubleshooting_quotes_are_printed() -> None:
    """Between two … each part is in the code, as it is printed there."""
    code = "".join(path.read_text() for path in CODE if "tests" not in path.relative_to(ROOT).parts)
    printed = re.sub(r'"\s*\n\s*f?"', "", code)
    quoted = re.findall(r"^\| `([^`]+)`", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quoted) > 30
    for message in quoted:
        for part in message.split("…"):
            told = part.strip(" :;,?")
            known = told in printed or told in OTHERS_MESSAGES
            assert known, f"{told!r} of {message!r}"


def test_the_pages_that_the_code_names_exist() -> None:
    for path in CODE:
        for name in re.findall(r"docs/[\w/-]+\.md\b", path.read_text()):
            assert (ROOT / name).exists(), f"{path} names {name}"


def is_gone(name: str) -> bool:
    """Whether a dotted name begins as a package of ours, and is none of its modules, nor up to two names within one."""
    parts = name.split(".")
    found = [ROOT.joinpath(*parts[:end]) for end in range(len(parts), max(len(parts) - 3, 0), -1)]
    is_ours = ROOT.joinpath(*parts[:2]).is_dir()  # broker.id is a setting.
    return (
        is_ours
        and not found[0].is_dir()
        and not any(path.with_suffix(".py").exists() for path in found)
    )


def test_the_files_and_modules_that_comments_name_exist() -> None:
    tops = "(?:broker|kafka_ds|spark_conf|tests)"
    for path in CODE:
        text = path.read_text()
        for name in re.findall(rf"(?<![\w./]){tops}/[\w/]+\.py\b", text):
            is_made_up = path.name == "test_leftovers.py"
            assert is_made_up or (ROOT / name).exists(), f"{path} names {name}"
        for name in re.findall(rf"`({tops}(?:\.\w+)+)`", text):
            assert not is_gone(name), f"{path} names {name}"


def test_the_protocol_table_is_what_the_registry_serves() -> None:
    assert (DOCS / "reference" / "protocol.md").read_text() == protocol_doc.render(), (
        "run: .venv/bin/python -m broker.protocol_doc > docs/reference/protocol.md"
    )


def test_the_page_of_the_command_is_what_its_help_says() -> None:
    assert (DOCS / "reference" / "cli.md").read_text() == command_page.render(), (
        "run: .venv/bin/python -m broker.cli.page > docs/reference/cli.md"
    )


def test_the_options_of_the_source_are_all_described() -> None:
    assert (DOCS / "reference" / "options.md").read_text() == options_doc.render(), (
        "run: .venv/bin/python -m kafka_ds.source.options.options_doc > docs/reference/options.md"
    )


def test_each_option_has_an_example_that_is_accepted() -> None:
    assert options_doc.EXAMPLES.keys() == OPTIONS.keys() | SINK_OPTIONS.keys()
    for name, value in options_doc.EXAMPLES.items():
        given = {"kafka.bootstrap.servers": "broker:9092", name: value}
        if name in ("load", *LOAD_OPTIONS):
            parse_sink_options({"topic": "orders", "load": "lake", **given}, stream=False)
        elif name in SINK_OPTIONS:
            parse_sink_options({"checkpointLocation": "/checkpoint", **given}, stream=True)
        if value and name in OPTIONS:
            if name not in ("subscribe", "subscribePattern", "assign"):
                given["subscribe"] = "orders"
            parse_options(given)


def test_each_default_is_what_holds_without_the_option() -> None:
    servers = {"kafka.bootstrap.servers": "broker:9092"}
    for name, pair in options_doc.DEFAULTS.items():
        for value, stream in zip(pair, (False, True), strict=True):
            if value and name in SINK_OPTIONS:
                given = {**servers, "checkpointLocation": "/checkpoint"} if stream else servers
                written = parse_sink_options({**given, name: value}, stream=stream)
                assert written == parse_sink_options(given, stream=stream), name
            elif value:
                given = {**servers, "subscribe": "orders"}
                read = parse_options({**given, name: value}, stream=stream)
                assert replace(read, ignored=()) == parse_options(given, stream=stream), name


class Recorded:
    """A stand-in for Spark that runs nothing and records the options of its queries."""

    def __init__(self) -> None:
        self.queries: list[tuple[str, dict[str, str]]] = []

    def __getattr__(self, name: str) -> Recorded:
        if name in ("read", "readStream", "write", "writeStream"):
            self.queries.append((name, {}))
        return self

    def __call__(self, *arguments: object, **named: object) -> Recorded:
        return self

    def option(self, name: str, value: object) -> Recorded:
        self.queries[-1][1][name] = str(value)
        return self


class Names(dict[str, Any]):
    """What a script has not made itself is there."""

    def __missing__(self, name: str) -> Recorded:
        return self["spark"]


def test_the_code_of_the_page_runs_and_its_options_are_accepted() -> None:
    """But for what Spark does with it; the scripts in docs/examples are run (tests/spark/test_examples.py)."""
    queries: list[tuple[str, dict[str, str]]] = []
    for block in own_blocks("docs/reference/spark.md", __file__):
        spark = Recorded()
        code = f"(spark.read\n{block.code})" if block.code.startswith(" ") else block.code
        exec(re.sub(r"(?m)^(from|import) .*$", "", code), {}, Names(spark=spark))
        queries += spark.queries
    assert len(queries) > 5
    for kind, options in queries:
        given = {"kafka.bootstrap.servers": "broker:9092", **options}
        if kind.startswith("write"):
            parse_sink_options(given, stream=kind == "writeStream")
        else:
            parse_options({"subscribe": "orders", **given}, stream=kind == "readStream")


def test_the_extra_for_spark_brings_what_pyspark_asks_for_itself() -> None:
    """Spark's `toPandas`, its Arrow functions and Connect import these; PySpark alone does not bring them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {re.split(r"[<>=\[]", each)[0] for each in extras["spark"]}
    assert named >= {"pyspark", "delta-spark", "pandas", "grpcio", "grpcio-status"}
