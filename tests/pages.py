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


# What is done with a block that no test runs: its commands, settings, SQL or Python are parsed.
PARSED = "parsed by tests/unit/test_code_blocks.py"
INSTALLS = "installs, which make package does"
TAKES_LONG = "takes long"
PICTURE = "a picture"
PAGES_TEST, SPARK_PAGES = "tests/integration/test_pages.py", "tests/spark/test_pages.py"
SUBMITTED = "tests/spark/test_submitted_pages.py"
# What becomes of each block of a page: of those that have a text, and (None) of all others. A test that is named gets
# them by `own_blocks`, and uses all that it gets; else it is parsed, or there is a reason why nothing is done.
FATES: dict[str, dict[str | None, str]] = {
    "CONTRIBUTING.md": {None: "sets up a checkout, tests it, and writes its pages"},
    "README.md": {None: PAGES_TEST, "pip install": INSTALLS},
    "docs/concepts/diskless.md": {None: PARSED, "```text": PICTURE},
    "docs/concepts/groups.md": {None: PICTURE},
    "docs/concepts/table.md": {
        None: PARSED,
        "```properties": "tests/lake/test_trino.py",
        "```sql": "tests/lake/test_trino.py",
    },
    "docs/get-started/columns.md": {
        None: SUBMITTED,
        "pip install": INSTALLS,
        "kafka-ds broker": PARSED,
    },
    "docs/get-started/dashboard.md": {
        None: "tests/spark/test_dashboard_page.py",
        "COMPOSE_PROFILES": "tests/spark/test_dashboard_page.py starts the services",
        "compose down": "tests/spark/test_dashboard_page.py stops the services",
        "pip install": INSTALLS,
    },
    "docs/get-started/spark.md": {None: SPARK_PAGES, "pip install": INSTALLS},
    "docs/get-started/tutorial.md": {
        None: PAGES_TEST,
        "pip install": INSTALLS,
        "kafka-ds broker": PARSED,
    },
    "docs/how-to/all-cores.md": {None: PARSED},
    "docs/how-to/catalogs.md": {None: PARSED},
    "docs/how-to/database-changes.md": {
        None: "tests/spark/test_debezium.py",
        "```properties": "tests/spark/change_stream.py",
        "connect-standalone.sh": "tests/spark/change_stream.py starts its class",
        "kafka-ds pipelines": PARSED,
    },
    "docs/how-to/declarative-pipelines.md": {None: SUBMITTED, "pip install": INSTALLS},
    "docs/how-to/dead-letters.md": {None: "tests/clients/test_share_consumers.py does the same"},
    "docs/how-to/decode.md": {
        None: PAGES_TEST,
        "kafka.orders": SPARK_PAGES,
        "from_avro": SPARK_PAGES,
    },
    "docs/how-to/erase.md": {None: PAGES_TEST},
    "docs/how-to/exactly-once.md": {None: SPARK_PAGES},
    "docs/how-to/from-kafka.md": {None: "tests/peer/test_command_line.py"},
    "docs/how-to/gcs-and-azure.md": {None: PARSED},
    "docs/how-to/iceberg.md": {
        None: "tests/lake/test_iceberg.py",
        "```sh": PARSED,
        'format("iceberg")': PARSED,
    },
    "docs/how-to/install.md": {None: "tests/image/test_image.py", "systemctl": "needs systemd"},
    "docs/how-to/kerberos.md": {
        None: INSTALLS,
        "kadmin": "tests/kerberos.py does the same",
        "```properties": "tests/integration/test_kerberos.py",
    },
    "docs/how-to/lose-a-disk.md": {
        None: "a line of the log",
        "kafka-configs.sh": "Kafka's tool; tests/peer/test_log_dirs_tools.py sets the same",
    },
    "docs/how-to/monitor.md": {
        None: PARSED,
        "kafka-client-metrics.sh": "Kafka's tool, which tests/peer/test_client_tools.py runs",
    },
    "docs/how-to/read-replicas.md": {None: PARSED},
    "docs/how-to/repair-the-lake.md": {None: PAGES_TEST},
    "docs/how-to/restore.md": {None: PAGES_TEST, "```text": "a line of the report"},
    "docs/how-to/s3.md": {None: PAGES_TEST, "gs://archive": PARSED},
    "docs/how-to/several-brokers.md": {None: PAGES_TEST},
    "docs/how-to/three-brokers.md": {None: PAGES_TEST},
    "docs/how-to/tls-and-scram.md": {None: PAGES_TEST},
    "docs/how-to/typed-tables.md": {
        None: "tests/spark/test_typed_pages.py",
        "spark-submit": SUBMITTED,
        "kafka-configs.sh": "Kafka's tool; tests/spark/test_pipelines_avro.py changes the setting",
    },
    "docs/internals/architecture.md": {None: PICTURE},
    "docs/internals/benchmarks.md": {None: TAKES_LONG},
    "docs/internals/simulation.md": {None: TAKES_LONG},
    "docs/reference/cli.md": {
        None: "tests/integration/test_command_page.py",
        "```text": "a usage, made of the parser",
        "```toml": PARSED,
        "```properties": PARSED,
    },
    "docs/reference/security.md": {
        None: "tests/peer/test_security_page.py",
        "security.protocol=SASL_SSL": PARSED,
        "kafka-delegation-tokens.sh": "Kafka's tool, which tests/peer/test_client_tools.py runs",
    },
    "docs/reference/spark.md": {
        None: "tests/unit/test_docs.py",
        "```properties": PARSED,
        "```sql": "tests/spark/test_compacted.py",
        "SparkConnectServer": "tests/spark/test_connect.py",
        " JOB": SUBMITTED,
        "spark-sql": SUBMITTED,
    },
    "docs/reference/sql.md": {None: PAGES_TEST, "```python": SPARK_PAGES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; `title` is the file as which a reader saves it."""

    page: str
    line: int
    language: str
    title: str
    code: str

    @property
    def fate(self) -> str:
        """What becomes of it: one of `FATES`."""
        fates = FATES[self.page]
        whole = f"```{self.language} {self.title}\n{self.code}"
        found = {fate for mark, fate in fates.items() if mark is not None and mark in whole}
        assert len(found) <= 1, f"{self.page}:{self.line}: {found}"
        return found.pop() if found else fates[None]

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


def own_blocks(page: str, test: str) -> list[Block]:
    """The blocks of a page that this test (`__file__`) is said to run: all of them are to be used."""
    name = Path(test).relative_to(ROOT).as_posix()
    found = [block for block in blocks_of(ROOT / page) if block.fate == name]
    assert found, f"no block of {page} is said to be run by {name}"
    return found


class PageReader:
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
