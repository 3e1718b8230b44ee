"""The program as a whole: what its start takes, and what its help has."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker.cli.main import program
from broker.cli.page import commands

COMMANDS = list(commands(program))
ROOT = Path(__file__).resolve().parents[3]
HEAVY = "pyarrow numba numpy deltalake duckdb pandas pyspark rich ssl asyncio cryptography broker.broker_server"


def test_help_loads_nothing_that_takes_time() -> None:
    code = (
        "import sys\nfrom broker.cli.main import program\n"
        "try: program.main(['--help'], prog_name='kafka-ds')\nexcept SystemExit: pass\n"
        f"print('loaded:', *(m for m in {HEAVY.split()!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_the_script_is_the_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["kafka-ds"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_no_line_of_a_list_of_commands_is_cut() -> None:
    def lines(group: click.Group) -> list[str]:
        inner = [each for each in group.commands.values() if isinstance(each, click.Group)]
        own = [each.get_short_help_str(1_000) for each in group.commands.values()]
        return own + [line for each in inner for line in lines(each)]

    assert [line for line in lines(program) if len(line) > 60] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tail orders --from-beginning", "Here it is: --from beginning."),
        ("topic --list", "Here it is: list."),
        ("topic describe --topic orders", "Here it is: the name alone."),
        ("group describe --group billing", "Here it is: the name alone."),
        ("group reset billing --to-earliest", "Here it is: --to beginning."),
        ("topic create orders --partitions three", "'three' is not a valid integer."),
        ("cluster balance --tolerance x", "'x' is not a valid number."),
    ],
)
def test_a_habit_of_kafkas_tools_or_a_wrong_number_is_told_plainly(words: str, said: str) -> None:
    done = CliRunner().invoke(program, words.split())
    assert done.exit_code == 2
    assert said in done.output + done.stderr


@pytest.mark.parametrize(
    ("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS]
)
def test_each_command_has_help_with_an_example(
    words: tuple[str, ...], command: click.Command
) -> None:
    done = CliRunner().invoke(program, [*words, "--help"])
    assert done.exit_code == 0
    assert f"kafka-ds {' '.join(words)}" in (command.help or "")
    assert "Example" in (command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or isinstance(parameter.type, click.Choice), parameter.name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("topic", "lst"),
            "'list'? (usage: kafka-ds topic [OPTIONS] COMMAND [ARGS]...; try 'kafka-ds topic --help')",
        ),
        (
            ("produce", "orders", "--fast"),
            "(usage: kafka-ds produce [OPTIONS] TOPIC; try 'kafka-ds produce --help')",
        ),
    ],
    ids=" ".join,
)
def test_a_command_that_was_called_wrongly_is_told_how_it_is_called(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(list(words), prog_name="kafka-ds")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(told)


@pytest.mark.parametrize(
    ("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS]
)
def test_help_fits_a_terminal(words: tuple[str, ...], command: click.Command) -> None:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(
        program, [*words, "--help"], prog_name="kafka-ds"
    )
    _, _, options = done.output.partition("Options:")
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    # A name that leaves its help no room, and a word that is broken.
    assert [line for line in options.splitlines() if re.match(r"  -\S+( \S+)?$|.*\w-$", line)] == []
