"""Coverage-guided fuzzing: `make fuzz SECONDS=n` runs each target that long; findings go to tests/fuzz/corpus.

Each target has a process, because libFuzzer ends it; memory and time of an input are bounded. Each finding is kept in
its own file, and a few small inputs that reach new code in another (`learning`), all as hexadecimal digits. Loops that
numba compiles run as plain Python (NUMBA_DISABLE_JIT=1): there their coverage is seen, and a read or write out of
bounds is an error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import CodeType

import numba

from tests.fuzz.learning import steps_of, worth_keeping
from tests.fuzz.seeds import CORPUS, corpus, seeds
from tests.fuzz.targets import INPUT_BYTES_MAX, TARGETS

SECONDS = 60
ONE_INPUT_CPU_S = 5
# In wall time: on a busy machine an input takes far longer than its CPU time.
ONE_INPUT_S = 60
MEMORY_MIB = 2048
LEARNT = "learnt.hex"
INSTRUMENTED = ("kafka_ds", "broker")


def fuzz(target: str, words: list[str]) -> None:
    """Run one target in this process; libFuzzer reads `words` and does not return."""
    import atheris  # only where fuzzing is done
    from atheris.instrument_bytecode import patch_code

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        for name in [
            name for name in sys.modules if name.split(".")[0] in (*INSTRUMENTED, "tests")
        ]:
            del sys.modules[name]
        from kafka_ds.protocol import emit
        from tests.fuzz import seeds, targets

    def compile_watched(source: str, title: str, mode: str) -> CodeType:
        return patch_code(compile(source, title, mode), True)

    # The readers of messages are generated at run time.
    vars(emit)["compile"] = compile_watched
    read = targets.TARGETS[target]
    for data in seeds.seeds(target):
        read(data)  # all that is compiled at its first use

    def timed(data: bytes) -> None:
        began = time.process_time()
        read(data)
        assert time.process_time() - began < ONE_INPUT_CPU_S, "an input that takes long"

    atheris.Setup([sys.argv[0], *words], timed)
    atheris.Fuzz()


def keep(target: str, known: list[bytes], learnt: list[bytes]) -> None:
    """Add the inputs that are worth keeping to the corpus."""
    fresh = worth_keeping(known, learnt, partial(steps_of, TARGETS[target]))
    print(f"{target}: {len(fresh)} of {len(learnt)} inputs are kept", flush=True)
    if fresh:
        file = CORPUS / target / LEARNT
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        file.write_text("".join(f"{line}\n" for line in (*lines, *map(bytes.hex, fresh))))


def parse(words: list[str]) -> argparse.Namespace:
    """The seconds, and the targets that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=int, default=SECONDS, help="of each target")
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    asked = parser.parse_args(words)
    if unknown := [each for each in asked.targets if each not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}")
    if not numba.config.DISABLE_JIT:
        parser.error("NUMBA_DISABLE_JIT=1 is not set: of compiled loops nothing would be seen")
    return asked


def main(words: list[str]) -> int:
    """Run all targets one after the other, or those that are named after the seconds."""
    if words[:1] == ["--one"]:
        fuzz(words[1], words[2:])
        return 0
    asked = parse(words)
    failed = []
    for target in asked.targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            learnt, found = Path(folder, "learnt"), Path(folder, "found")
            learnt.mkdir(), found.mkdir()
            known = [*seeds(target), *corpus(target)]
            for number, data in enumerate(known):
                (learnt / f"seed-{number}").write_bytes(data)
            options = (
                f"-max_total_time={asked.seconds}",
                f"-timeout={ONE_INPUT_S}",
                f"-rss_limit_mb={MEMORY_MIB}",
                f"-max_len={INPUT_BYTES_MAX}",
                f"-artifact_prefix={found}/",
                "-print_final_stats=1",
            )
            command = [sys.executable, "-m", "tests.fuzz", "--one", target, str(learnt), *options]
            print(f"{target}: {asked.seconds} s", flush=True)
            status = subprocess.run(command, check=False).returncode
            for file in found.iterdir():
                kept = CORPUS / target / f"{file.name[:20]}.hex"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(file.read_bytes().hex() + "\n")
                print(f"{target}: {kept} shows it", flush=True)
            if status:
                failed.append(target)
            keep(target, known, [file.read_bytes() for file in learnt.iterdir()])
    print("found something: " + ", ".join(failed) if failed else "found nothing", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
