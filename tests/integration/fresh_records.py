"""What several tests use: fresh."""

import time

from tests.integration.tier_broker import (
    ProducedRow,
    rows,
)


def fresh(count: int, *, start: int = 0) -> list[ProducedRow]:
    now_ms = int(time.time() * 1000)
    return [
        ProducedRow(key=each.key, value=each.value, headers=each.headers, timestamp_ms=now_ms)
        for each in rows(count, start=start)
    ]
