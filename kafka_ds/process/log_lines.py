"""Shell: the application log on standard error, as text or JSON.

`log.format=json` writes an object per line: `time` (UTC), `level`, `logger`, `message`, the caller's `extra`, and
`exception`. Clients can neither flood nor forge the log: a message is one line of at most MESSAGE_CHARS_MAX, and at
most LINES_MAX lines of a log statement (DEBUG excepted) are written in WINDOW_SECONDS; then a line has the number of
those left out. Every process of a broker sets up its log here, with format and levels from the environment. Levels that
are changed at run time are not persistent.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

TEXT, JSON = "text", "json"
LINES_MAX = 50
MESSAGE_CHARS_MAX = 8_000
WINDOW_SECONDS = 10.0
FORMAT_VARIABLE = "KAFKA_DS_LOG_FORMAT"
NODE_VARIABLE = "KAFKA_DS_LOG_NODE"
LEVELS_VARIABLE = "KAFKA_DS_LOG_LEVELS"
ROOT = "root"
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG // 2,
}
# The most log statements with a window at once; beyond that all windows are reset.
STATEMENTS_MAX = 1_000

# Line ends and terminal control characters.
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}

# Those that json.dumps does not escape.
_JSON_CONTROLS = {code: f"\\u{code:04x}" for code in _CONTROLS if code >= 127}

# The attributes of every LogRecord; others are the caller's `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_broker(how: str, node_id: int, level: str) -> None:
    """Set up the log of this process and of its future child processes; each line has the node id."""
    os.environ[FORMAT_VARIABLE] = how
    os.environ[NODE_VARIABLE] = str(node_id)
    os.environ.pop(LEVELS_VARIABLE, None)
    set_up(how, node=str(node_id))
    set_level(ROOT, level)


def set_up_child(process: str) -> None:
    """Set up the log of a broker's child process; each line has its name `process`."""
    node = os.environ.get(NODE_VARIABLE, "")
    set_up(os.environ.get(FORMAT_VARIABLE, TEXT), process=process, node=node)
    for logger, level in _levels_of_environment().items():
        set_level(logger, level)


def set_level(logger: str, level: str | None) -> None:
    """Set a logger's level, here and in future child processes; None: inherit it."""
    logging.getLogger(None if logger == ROOT else logger).setLevel(
        logging.NOTSET if level is None else LEVELS[level]
    )
    found = _levels_of_environment()
    found.pop(logger, None)
    os.environ[LEVELS_VARIABLE] = json.dumps(found if level is None else {**found, logger: level})


def _levels_of_environment() -> dict[str, str]:
    found: dict[str, str] = json.loads(os.environ.get(LEVELS_VARIABLE, "{}"))
    return found


def levels() -> dict[str, str]:
    """The effective levels of the root logger and of kafka-ds' loggers and their parents."""
    made = tuple(logging.root.manager.loggerDict)
    ours = [name for name in made if name.partition(".")[0] in ("broker", "kafka_ds")]
    found = {name: logging.getLogger(name).getEffectiveLevel() for name in sorted(ours)}
    names = {number: name for name, number in LEVELS.items()}
    return {name: names[number] for name, number in {ROOT: logging.root.level, **found}.items()}


def set_up(how: str, *, process: str = "", node: str = "", stream: TextIO | None = None) -> None:
    """Let all loggers write to standard error; lines have the names `process` and `node`."""
    formatter: logging.Formatter
    if how == JSON:
        formatter = JsonLines(process, node)
    else:
        where = f"[node {node}] " if node else ""
        name = f"{process}: " if process else ""
        form = f"%(asctime)s %(levelname)s {where}{name}%(message)s (%(name)s)"
        formatter = TextLines(form)
    handler = LimitedHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for each in tuple(root.handlers):
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def message_of(record: logging.LogRecord) -> str:
    """The record's text, truncated."""
    message = record.getMessage()
    more = len(message) - MESSAGE_CHARS_MAX
    return message if more <= 0 else f"{message[:MESSAGE_CHARS_MAX]}… {more} characters more"


class TextLines(logging.Formatter):
    """Text lines, each followed by its traceback if it has one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without control characters."""
        record.message = message_of(record).translate(_CONTROLS)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """A JSON object per line."""

    def __init__(self, process: str = "", node: str = "") -> None:
        super().__init__()
        own = {"node": int(node) if node else None, "process": process or None}
        self._process = {name: value for name, value in own.items() if value is not None}

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; values without a JSON type become strings."""
        when = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            **self._process,
            "message": message_of(record),
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                fields.setdefault(name, value)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps(fields, ensure_ascii=False, default=str).translate(_JSON_CONTROLS)


class _Window:
    """The lines of a log statement since a time."""

    __slots__ = ("began_s", "left_out", "record", "written")

    def __init__(self, record: logging.LogRecord) -> None:
        self.began_s = record.created
        self.record = record
        self.written = 0
        self.left_out = 0


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes at most LINES_MAX lines of each log statement in WINDOW_SECONDS."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.windows: dict[tuple[str, int, object], _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless the limit is reached."""
        if record.levelno <= logging.DEBUG:
            super().emit(record)  # DEBUG is not limited.
            return
        self._end_windows(record.created)
        # A statement is identified by file and line: its text may vary.
        key = (record.pathname, record.lineno, record.levelno)
        window = self.windows.get(key)
        if window is None:
            if len(self.windows) >= STATEMENTS_MAX:
                self._end_windows(float("inf"))
            window = self.windows[key] = _Window(record)
        if window.written >= LINES_MAX:
            window.left_out += 1
            window.record = record
            return
        window.written += 1
        super().emit(record)

    def close(self) -> None:
        """Write how many lines were left out."""
        self._end_windows(float("inf"))
        super().close()

    def _end_windows(self, now_s: float) -> None:
        # If the clock was set back, windows end at once.
        ended = [
            key
            for key, window in self.windows.items()
            if not 0 <= now_s - window.began_s < WINDOW_SECONDS
        ]
        for key in ended:
            window = self.windows.pop(key)
            if window.left_out:
                super().emit(_summary(window))


def _summary(window: _Window) -> logging.LogRecord:
    last = window.record
    return logging.makeLogRecord(
        {
            "name": last.name,
            "levelno": last.levelno,
            "levelname": last.levelname,
            "msg": "%d lines like this one were left out: %s",
            "args": (window.left_out, last.getMessage()),
            "left_out": window.left_out,
        }
    )
