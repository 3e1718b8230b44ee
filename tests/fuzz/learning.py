"""What is kept of what fuzzing learnt: few and small inputs that reach what those known before do not.

Rules of this file: what an input reaches are steps from line to line, within the code that is fuzzed. Small inputs come
first, and one whose steps others take as well goes again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
# And what readers and writers of messages are called, which are written while we run.
FUZZED = (*(f"{ROOT / name}/" for name in ("kafka_ds", "broker")), "<reader of ", "<writer of ")
# Larger inputs are not kept, nor more of them by one run of a target: all are replayed with each run of the tests.
KEPT_BYTES_MAX = 1024
KEPT_MAX = 30

Step = tuple[str, int, int]
_Place = TypeVar("_Place", bound=Hashable)


def steps_of(target: Callable[[bytes], None], data: bytes) -> set[Step]:
    """File, line before and line, wherever the target comes by; what it raises is told elsewhere."""
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
    """Of `learnt` few small ones that reach what none of the known ones does; those that find most, if too many."""
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
