"""What fuzzing has found stays found, and right inputs with some bytes changed raise nothing that is not declared."""

import tracemalloc
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.learning import KEPT_MAX, steps_of, worth_keeping
from tests.fuzz.seeds import CORPUS, corpus, seeds
from tests.fuzz.targets import INPUT_BYTES_MAX, TARGETS

CHANGED = {"parquet": 40, "delta_commit": 150, "converted": 60}
# What an input of a few KiB may take at most while it is read.
MEMORY_BYTES_MAX = 16 << 20


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_undeclared_is_raised(target: str) -> None:
    known = [*seeds(target), *corpus(target)]
    random = Random(target)
    inputs = list(known)
    for _ in range(CHANGED.get(target, 300)):
        data = bytearray(random.choice(known))
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(data) + 1)
            change = random.choice([b"", b"\0", b"\xff\xff", b"\x7f", random.randbytes(2)])
            data[at : at + random.choice([0, 1, len(change)])] = change
        inputs.append(bytes(data)[:INPUT_BYTES_MAX])
    for data in inputs:
        TARGETS[target](data)


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "parquet"])
def test_what_was_found_takes_no_memory(target: str) -> None:
    for data in (next(seeds(target)), *corpus(target)):
        TARGETS[target](data)  # what is compiled once
        tracemalloc.start()
        TARGETS[target](data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY_BYTES_MAX, data


def test_the_corpus_is_of_targets() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= set(TARGETS)


def test_few_small_inputs_are_kept() -> None:
    learnt = [b"ab", b"abc", b"abcd", b"e" * 2000, b"a", b"xy"]
    # "abcd" reaches what the others do; "e" is too large.
    assert worth_keeping([b"x"], learnt, set) == [b"abcd", b"xy"]
    many = [bytes([each]) for each in range(1, 256)]
    assert len(worth_keeping([], many, set)) == KEPT_MAX


def test_steps_are_those_of_what_is_fuzzed() -> None:
    data = next(seeds("frame"))
    steps = steps_of(TARGETS["frame"], data)
    assert {Path(file).name for file, *_ in steps} >= {"frame.py", "codec.py"}
    assert len(steps_of(TARGETS["frame"], data[:3])) < len(steps)
