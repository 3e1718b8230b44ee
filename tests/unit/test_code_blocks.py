"""Every code block of the pages is run by a test, or read by a parser: a shell's, a command's, a setting's, Python's.

What is run stands in `RUN`, by page. Of the rest is checked what can be without running it: that a shell takes the
text, that commands, options and settings exist, that names of ours can be imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator

import click
import pytest

from broker.cli.main import program
from broker.config.listeners import listener_key
from broker.config.loader import from_given, known_names
from broker.config.properties import parse_properties
from kafka_ds.client.security import parse_security
from spark_conf.session import defaults
from tests.pages import ROOT, Block, all_blocks

BLOCKS = all_blocks()
LANGUAGES = {"console", "properties", "python", "sh", "sql", "text", "toml"}
RUN = {
    "README.md": "tests/integration/test_pages.py",
    "docs/get-started/columns.md": "tests/spark/test_submitted_pages.py",
    "docs/get-started/spark.md": "tests/spark/test_pages.py",
    "docs/get-started/tutorial.md": "tests/integration/test_pages.py",
    "docs/how-to/database-changes.md": "tests/spark/test_debezium.py",
    "docs/how-to/declarative-pipelines.md": "tests/spark/test_submitted_pages.py",
    "docs/how-to/decode.md": "tests/integration/test_pages.py",
    "docs/how-to/erase.md": "tests/integration/test_pages.py",
    "docs/how-to/exactly-once.md": "tests/spark/test_pages.py",
    "docs/how-to/from-kafka.md": "tests/peer/test_command_line.py",
    "docs/how-to/iceberg.md": "tests/lake/test_iceberg.py",
    "docs/how-to/install.md": "tests/image/test_image.py",
    "docs/how-to/repair-the-lake.md": "tests/integration/test_pages.py",
    "docs/how-to/restore.md": "tests/integration/test_pages.py",
    "docs/how-to/s3.md": "tests/integration/test_pages.py",
    "docs/how-to/several-brokers.md": "tests/integration/test_pages.py",
    "docs/how-to/tls-and-scram.md": "tests/integration/test_pages.py",
    "docs/how-to/typed-tables.md": "tests/spark/test_typed_pages.py",
    "docs/reference/cli.md": "tests/integration/test_command_page.py",
    "docs/reference/security.md": "tests/peer/test_security_page.py",
    "docs/reference/spark.md": "tests/unit/test_docs.py",
    "docs/reference/sql.md": "tests/integration/test_pages.py",
}
# Their functions are run by tests of their own, with other tables than the page's.
READ_ONLY = {
    "docs/concepts/table.md": "tests/unit/topic, tests/lake",
}
# Scripts and settings of these pages that no test runs: a part of each, and why. Where the rest of a page is run, a new
# one is meant to be. What begins with "slow" is run by `make test-slow`.
SUBMITTED = "slow: tests/spark/test_submitted_pages.py"
NOT_RUN = {
    "README.md": {'pip install ".[broker]"': "installs"},
    "docs/get-started/columns.md": {"pip install": "installs"},
    "docs/get-started/spark.md": {"pip install": "installs"},
    "docs/get-started/tutorial.md": {"pip install": "installs"},
    "docs/how-to/database-changes.md": {"connect-standalone.sh": "the test starts its class"},
    "docs/how-to/declarative-pipelines.md": {
        "pip install": "installs",
        "spark-pipelines": SUBMITTED,
    },
    "docs/how-to/iceberg.md": {
        "PYICEBERG_CATALOG__LAKE__URI": "needs a catalog's server",
        "kafka-ds iceberg sync orders": "the test calls the command",
    },
    "docs/how-to/install.md": {"systemctl": "needs systemd", "docker build": "slow: tests/image"},
    "docs/how-to/s3.md": {"gs://archive": "needs Google's store"},
    "docs/how-to/typed-tables.md": {"spark-submit": SUBMITTED},
    "docs/reference/cli.md": {"[prod]": "is read", "security.protocol": "is read"},
    "docs/reference/spark.md": {
        "JOB": SUBMITTED,
        "spark-sql": SUBMITTED,
        "spark.delta.logStore.file.impl": "is compared with the defaults",
    },
}
# Pages of which nothing is run: how many a page has, and why.
PARSED_ONLY = {
    "CONTRIBUTING.md": (2, "sets up a checkout, tests it, and writes its pages"),
    "docs/how-to/catalogs.md": (2, "needs a catalog's server"),
    "docs/how-to/dead-letters.md": (1, "tests/clients/test_share_consumers.py does the same"),
    "docs/how-to/three-brokers.md": (1, "needs three machines and a bucket"),
    "docs/internals/benchmarks.md": (1, "takes long"),
    "docs/internals/simulation.md": (1, "takes long"),
}


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


def scripts() -> Iterator[tuple[str, str]]:
    """What is typed into a shell, and where it stands."""
    for block in of("sh"):
        yield named(block), block.code
    for block in of("console"):
        for command, _ in block.commands:
            yield named(block), command


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script that begin with a program's name; quotes, comments and pipes are the shell's."""
    for line in script.replace("\\\n", " ").splitlines():
        try:
            words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
            words = shlex.split(line, comments=True) if "(" in line else words
        except ValueError:
            words = shlex.split(line, comments=True)
        simple: list[str] = []
        for word in [*words, ";"]:
            if word in (";", "|", "&", "&&", "||", "<", ">", "("):
                if simple:
                    yield simple
                simple = []
            else:
                simple.append(word)


def test_each_block_says_what_it_is() -> None:
    """So that a page of new kind, or a fence that is not closed, is seen."""
    assert len(BLOCKS) > 80
    assert [named(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_python_and_consoles_are_run_or_their_functions_are() -> None:
    assert {block.page for block in of("console", "python")} <= RUN.keys() | READ_ONLY.keys()
    for page, test in RUN.items():
        name = page.rpartition("/")[2]
        assert name in (ROOT / test).read_text(), f"{test} does not run {page}"


def test_what_is_only_parsed_is_counted() -> None:
    ran_by_trino = "docs/concepts/table.md"
    read = [block for block in of("sh", "sql", "properties", "toml") if block.page != ran_by_trino]
    pages = [block.page for block in read if block.page not in RUN]
    counted = {page: pages.count(page) for page in pages}
    assert counted == {page: count for page, (count, _) in PARSED_ONLY.items()}
    for page, parts in NOT_RUN.items():
        for part in parts:
            assert sum(part in block.code for block in read if block.page == page) == 1, part


def test_a_shell_takes_every_script() -> None:
    for where, script in scripts():
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{where}: {done.stderr}"


def test_commands_of_ours_exist_with_their_options() -> None:
    """But for what a command finds wrong in values: no file has to be there."""
    seen = 0
    for where, script in scripts():
        for words in commands(script):
            if words[0] == "kafka-ds":
                parsed(where, words[1:])
                seen += 1
    assert seen > 60


@pytest.mark.parametrize(
    "wrong", ["topic make x", "topic create x --partition 3", "tail x --from", "no-such"]
)
def test_a_command_that_is_none_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        parsed("here", wrong.split())


def parsed(where: str, words: list[str]) -> None:
    command: click.Command = program
    context = click.Context(program, info_name="kafka-ds")
    while isinstance(command, click.Group):
        _, rest = command.make_parser(context).parse_args(list(words))[:2]
        found = command.get_command(context, rest[0]) if rest else None
        assert found is not None, f"{where}: kafka-ds {' '.join(words)}"
        command, words = found, words[words.index(rest[0]) + 1 :]
        context = click.Context(command, parent=context, info_name=command.name)
    try:
        command.make_parser(context).parse_args(list(words))
    except click.UsageError as mistake:
        raise AssertionError(f"{where}: {mistake}") from None


def test_modules_and_targets_that_are_run_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w.-]+):", makefile, re.MULTILINE))
    modules, made = set(), set()
    for _, script in scripts():
        modules |= set(re.findall(r"-m ((?:broker|kafka_ds|spark_conf|tests)[\w.]*)", script))
        made |= set(re.findall(r"^make ([\w.-]+)", script, re.MULTILINE))
    assert made - targets == set()
    assert {name for name in modules if importlib.util.find_spec(name) is None} == set()
    assert modules and made


@pytest.mark.parametrize("block", of("properties"), ids=named)
def test_settings_are_known(block: Block) -> None:
    if block.title.startswith("etc/"):
        return  # Trino's: tests/lake/test_trino.py.
    if block.page.endswith("database-changes.md"):
        return  # Kafka Connect's: tests/spark/test_debezium.py.
    given = {each.key: each.value for each in parse_properties(block.code)}
    assert given
    if all(name.startswith("spark.") for name in given):
        assert given.items() <= defaults().items()
        return
    if "security.protocol" in given:
        assert parse_security(given).uses_tls
        return
    assert {name for name in given if name not in known_names() and not listener_key(name)} == set()
    if "node.id" in given:
        from_given({name: (value, "the page") for name, value in given.items()})


@pytest.mark.parametrize("block", of("toml"), ids=named)
def test_profiles_can_be_read(block: Block) -> None:
    assert tomllib.loads(block.code)


@pytest.mark.parametrize("block", of("python"), ids=named)
def test_python_is_python_and_imports_what_is_there(block: Block) -> None:
    code = f"(spark.read\n{block.code})" if block.code.startswith(" ") else block.code
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("broker", "kafka_ds", "spark_conf", "tests")


@pytest.mark.parametrize("block", of("sql"), ids=named)
def test_sql_is_whole(block: Block) -> None:
    """Trino's are run by tests/lake/test_trino.py; of Spark's test_compacted.py and test_pages.py run what they can."""
    assert block.code.count("(") == block.code.count(")")
    assert re.match(r"(SELECT|CREATE|CALL) ", block.code)
