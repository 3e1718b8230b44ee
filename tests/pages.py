"""The code blocks of the pages: found, and run as a reader would run them in a terminal."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.command_line import CACHE

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```([a-z]*)(?: title=\"(\S+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:[^$].*\n|\n)*)", re.MULTILINE)
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")
TIMEOUT_S = 120.0
# Of docs/how-to/decode.md: a zero, the schema's id, and by Avro's rules order 21 as 42, and the length of a text as its
# double.
AVRO_ORDER = b"\0\0\0\0\7" + bytes([42, 6]) + b"ada"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; `title` is the file as which a reader saves it."""

    page: str
    line: int
    language: str
    title: str
    code: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Of a console: each command, and what it is said to print."""
        return COMMAND.findall(self.code)


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text()
    for found in BLOCK.finditer(text):
        indent, language, title, code = found.groups()
        yield Block(
            page=path.relative_to(ROOT).as_posix(),
            line=text[: found.start()].count("\n") + 1,
            language=language,
            title=title or "",
            code=textwrap.dedent(code) if indent else code,
        )


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


class Reader:
    """Someone who follows pages in one folder: saves the files, types the commands, and compares what is printed.

    ``instead`` has what differs here: a port is a free one. In an expected output … stands for anything.
    """

    def __init__(self, folder: Path, instead: Mapping[str, str], **environment: str) -> None:
        self.folder = folder
        self.instead = instead
        kept = {k: v for k, v in os.environ.items() if not k.startswith("KAFKA_DS_")}
        own = {"HOME": str(folder), "PYTHON": sys.executable}
        self.environment = {**kept, **CACHE, **own, **environment}

    def follow(self, block: Block, timeout_s: float = TIMEOUT_S) -> None:
        if block.language == "console":
            for command, output in block.commands:
                self.type(command, output)
        elif block.title:
            (self.folder / block.title).write_text(self.here(block.code))
        elif block.language == "python":
            done = self.run(f"python - <<'END'\n{block.code}\nEND")
            assert done.returncode == 0, done.stderr
        else:
            assert block.language == "sh", block
            done = self.run(f"set -e\n{block.code}", timeout_s)
            assert done.returncode == 0, done.stderr

    def type(self, command: str, output: str) -> None:
        done = self.run(command)
        said = MOMENT.sub("(time)", done.stdout + done.stderr)
        expected = re.escape(MOMENT.sub("(time)", output)).replace("…", ".*")
        assert re.fullmatch(expected, said), f"$ {command}\n{said}\ninstead of\n{output}"

    @contextmanager
    def broker(self, line: str, *more: str) -> Iterator[str]:
        """Type a command that runs a broker, with more words; its address. Ctrl-C ends it."""
        program, *words = shlex.split(self.here(line), comments=True)
        assert program == "kafka-ds"
        log = self.folder / "broker.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "broker.cli", *words, *more],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment,
                cwd=self.folder,
            ) as running,
        ):
            assert running.stdout is not None
            try:
                said = running.stdout.readline()
                assert said.startswith("ready "), log.read_text()
                yield said.split()[1]
            finally:
                running.send_signal(signal.SIGINT)
        assert running.returncode == 0, log.read_text()

    def here(self, text: str) -> str:
        for written, used in self.instead.items():
            text = text.replace(written, used)
        return text

    def run(self, script: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        ours = 'kafka-ds() { "$PYTHON" -m broker.cli "$@"; }\npython() { "$PYTHON" "$@"; }\n'
        return subprocess.run(
            ["bash", "-c", ours + self.here(script)],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=timeout_s,
            check=False,
        )
