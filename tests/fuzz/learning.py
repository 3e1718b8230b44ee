"""Which inputs of fuzzing are kept: a few small ones that reach code which known inputs do not reach.

An input reaches steps from line to line, within the fuzzed code. Small inputs are chosen first, and an input whose
steps are all reached by others is dropped again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
# With the names of the generated readers and writers of messages.
FUZZED = (*(f"{ROOT / name}/" for name in ("kafka_ds", "broker")), "<reader of ", "<writer of ")
# Larger inputs are not kept, and no more than this many by one run of a target: each run of the tests replays them all.
KEPT_BYTES_MAX = 1024
KEPT_MAX = 30

Step = tuple[str, int, int]
_Place = TypeVar("_Place", bound=Hashable)


def steps_of(target: Callable[[bytes], None], data: bytes) -> set[Step]:
    """The steps that a target takes: file, line before, and line. What it raises is ignored here."""
    found: set[Step] = set()

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        file, before = frame.f_code.co_filename, 0
        if not file.startswith(FUZZED):
            return None

        def step(inside: FrameType, _event: str, _argument: Any) -> Any:
            nonlocal before
            found.add((file, before, inside.f_lineno))
            before = inside.f_lineno
            return step

        return step

    traced = sys.gettrace()
    sys.settrace(enter)
    try:
        target(data)
    except Exception:
        return set()
    finally:
        sys.settrace(traced)
    return found


def worth_keeping(
    known: Iterable[bytes], learnt: Iterable[bytes], reached: Callable[[bytes], set[_Place]]
) -> list[bytes]:
    """The few small inputs of `learnt` that reach what no known one does; if too many, those that find most."""
    before: set[_Place] = set().union(*map(reached, known))
    seen = set(before)
    kept: dict[bytes, set[_Place]] = {}
    small = {data for data in learnt if len(data) <= KEPT_BYTES_MAX}
    for data in sorted(small, key=lambda each: (len(each), each)):
        new = reached(data) - before
        if new - seen:
            kept[data] = new
            seen |= new
    takers = Counter(place for places in kept.values() for place in places)
    for data, places in list(kept.items()):
        if all(takers[place] > 1 for place in places):
            takers.subtract(places)
            del kept[data]
    by_alone = sorted(kept, key=lambda data: -sum(takers[place] == 1 for place in kept[data]))
    return by_alone[:KEPT_MAX]
