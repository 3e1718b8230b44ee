"""Coverage-guided fuzzing: `make fuzz SECONDS=n`, each target that long; what is found goes to tests/fuzz/corpus.

Rules of this file: one process a target (libFuzzer ends its process), memory and time of one input bounded. What was
learnt on the way lies in a temporary folder and is not kept; a finding is, as hexadecimal digits.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import CORPUS, corpus, seeds
from tests.fuzz.targets import INPUT_BYTES_MAX, TARGETS

SECONDS = 60
ONE_INPUT_S = 10
MEMORY_MIB = 2048
INSTRUMENTED = ("kafka_ds", "broker")


def fuzz(target: str, words: list[str]) -> None:
    """One target in this process; libFuzzer reads `words`, and does not come back."""
    import atheris  # only where fuzzing is done

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        for name in [
            name for name in sys.modules if name.split(".")[0] in (*INSTRUMENTED, "tests")
        ]:
            del sys.modules[name]
        from tests.fuzz import targets

    atheris.Setup([sys.argv[0], *words], targets.TARGETS[target])
    atheris.Fuzz()


def main(words: list[str]) -> int:
    """All targets one after the other, or those that are named behind the seconds."""
    if words[:1] == ["--one"]:
        fuzz(words[1], words[2:])
        return 0
    seconds = int(words[0]) if words else SECONDS
    failed = []
    for target in words[1:] or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            learnt, found = Path(folder, "learnt"), Path(folder, "found")
            learnt.mkdir(), found.mkdir()
            for number, data in enumerate((*seeds(target), *corpus(target))):
                (learnt / f"seed-{number}").write_bytes(data)
            options = (
                f"-max_total_time={seconds}",
                f"-timeout={ONE_INPUT_S}",
                f"-rss_limit_mb={MEMORY_MIB}",
                f"-max_len={INPUT_BYTES_MAX}",
                f"-artifact_prefix={found}/",
                "-print_final_stats=1",
            )
            command = [sys.executable, "-m", "tests.fuzz", "--one", target, str(learnt), *options]
            print(f"{target}: {seconds} s", flush=True)
            status = subprocess.run(command, check=False).returncode
            for file in found.iterdir():
                kept = CORPUS / target / f"{file.name[:20]}.hex"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(file.read_bytes().hex() + "\n")
                print(f"{target}: {kept} shows it", flush=True)
            if status:
                failed.append(target)
    print("found something: " + ", ".join(failed) if failed else "found nothing", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
