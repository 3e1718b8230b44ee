"""What several tests use: fresh."""

import time

from tests.integration.tier_broker import (
    Row,
    rows,
)


def fresh(count: int, *, start: int = 0) -> list[Row]:
    now_ms = int(time.time() * 1000)
    return [
        Row(key=each.key, value=each.value, headers=each.headers, timestamp_ms=now_ms)
        for each in rows(count, start=start)
    ]
