"""Every code block of the pages is run by a test, or read by a parser: a shell's, a command's, a setting's, Python's,
SQL's; or it is said why not (`tests.pages.FATES`). What is run is read as well, so that a slow test is no excuse.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import click
import duckdb
import pytest

from broker.cli.main import program
from broker.config.broker import BrokerConfig
from broker.config.listeners import listener_key
from broker.config.loader import from_given, known_names, topic_config
from broker.config.properties import parse_properties
from broker.erasure.condition import InvalidCondition, RecordCondition
from kafka_ds.client.security import parse_security
from kafka_ds.process.settings import ConfigError
from spark_conf.session import defaults
from tests.pages import FATES, PARSED, ROOT, Block, all_blocks

BLOCKS = all_blocks()
LANGUAGES = {"console", "properties", "python", "sh", "sql", "text", "toml"}
# What a block that is only parsed may call, besides commands of ours.
SHELLS_OWN = {"cd", "export", "mkdir"}


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
    begun = ""
    for line in script.replace("\\\n", " ").splitlines():
        begun += f"{line}\n"
        lexer = shlex.shlex(begun, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # A quotation goes on in the next line.
        begun = ""
        simple: list[str] = []
        rest = iter([*words, ";"])
        for word in rest:
            if word in ("<", ">", "<<<"):
                next(rest)
                simple = simple[:-1] if simple[-1].isdigit() else simple
            elif word in (";", "|", "&", "&&", "||", "(", ")"):
                if simple:
                    yield simple
                simple = []
            else:
                simple.append(word)
    assert not begun, begun


def test_each_block_says_what_it_is() -> None:
    """So that a page of new kind, or a fence that is not closed, is seen."""
    assert len(BLOCKS) > 80
    assert [named(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_what_becomes_of_each_block_is_said() -> None:
    """A test that is named asks for the page's blocks; a text is not parsed."""
    assert {block.page for block in BLOCKS} == FATES.keys()
    for block in BLOCKS:
        if re.fullmatch(r"tests/\S+\.py", block.fate):
            test = (ROOT / block.fate).read_text()
            assert block.page in test or block.page.rpartition("/")[2] in test, block.fate
            assert "own_blocks(" in test, block.fate
        elif block.fate == PARSED:
            assert block.language != "text", named(block)
    for page, fates in FATES.items():
        there = [block for block in BLOCKS if block.page == page]
        for mark, fate in fates.items():
            whole = [f"```{b.language} {b.title}\n{b.code}" for b in there if b.fate == fate]
            assert any(mark is None or mark in text for text in whole), f"{page}: {mark}"


def test_what_is_parsed_is_ours() -> None:
    """Of other programs nobody here knows the options: who runs them is to be said."""
    for block in of("sh", "console"):
        scripts = [block.code] if block.language == "sh" else [c for c, _ in block.commands]
        for words in (words for script in scripts for words in commands(script)):
            if block.fate == PARSED:
                assert words[0] in {"kafka-ds", *SHELLS_OWN}, f"{named(block)}: {words}"


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
    "wrong",
    [
        "topic make x",
        "topic create x --partition 3",
        "topic create x --partitions few",
        "topic create",
        "tail x --from",
        "no-such",
        "sql 'SELECT FROM WHERE'",
        "erase --topic x --where 'key = '",
        "broker --override lake.max.lag=5",
        "topic alter x --config retention.m=5",
    ],
)
def test_a_command_that_is_none_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, duckdb.Error, ConfigError, InvalidCondition)):
        parsed("here", shlex.split(wrong))


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
        command.parse_args(context, list(words))
    except click.UsageError as mistake:
        raise AssertionError(f"{where}: {mistake}") from None
    values = context.params
    if command.name == "sql" and values["statement"]:
        assert duckdb.extract_statements(values["statement"])
    if values.get("where"):
        RecordCondition(values["where"])
    check_settings(values)


def check_settings(values: Mapping[str, Any]) -> None:
    """Those that a command is given: a broker's, or a topic's."""
    given = dict(each.split("=", 1) for each in values.get("overrides", ()))
    from_given({name: (value, "--override") for name, value in given.items()})
    topics_own = dict(each.split("=", 1) for each in values.get("configs", ()))
    topic_config(BrokerConfig(), topics_own)


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
def test_sql_is_sql(block: Block) -> None:
    """DuckDB parses what is not run, and what is not of Spark or Trino alone."""
    if block.fate == PARSED:
        assert duckdb.extract_statements(block.code)
    assert block.code.count("(") == block.code.count(")")
