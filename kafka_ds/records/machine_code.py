"""Shell: `kafka_ds.records.validation_loop` as machine code, for a process without numba (which costs 100 MiB and 1 s).

- In plain Python the loop takes 26 s of CPU a GB of 100-byte records instead of 0.2.
- What numba makes of the loop is four KiB that call nothing and point nowhere. Another process makes it, compares it
  with the loop in Python and keeps it, for the plainest processor of its kind; the file's name says what it is made of.
- A file is executed only if no other user may write to it or its folder, and its checksum is right.
- Linux on x86-64 and arm64 have such code; elsewhere, and until it is made, the loop runs in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import logging
import mmap
import os
import platform
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kafka_ds.records import validation, validation_loop
from kafka_ds.records.batch import HEADER_BYTES, NO_TIMESTAMP, Record, build_batch, read_header
from kafka_ds.records.code_folder import cache_folder, private_folders

__all__ = ["build", "build_beside", "load", "prove"]

MACHINES = ("x86_64", "aarch64")
_BUILD_SECONDS_MAX = 300
_DIGEST_BYTES = 32
# Where numba's convention wants a result and an exception to be written: at the state's end.
RESULT, EXCEPTION = -2, -1
_Number: Final = ctypes.c_int64
_SMALLEST_STATE: Final = _Number * (validation_loop.STATE_NUMBERS + 2)
# Zeros up to COUNT, then what is given, in this order, and room for those two. (Number by number: a microsecond more.)
_GIVEN: Final = struct.Struct(
    f"={8 * validation_loop.COUNT}x{validation_loop.STATE_NUMBERS - validation_loop.COUNT}q16x"
)
_LOGGER = logging.getLogger(__name__)


def load() -> bool:
    """Load the code for this version, and have records validated by it; whether they are."""
    if not validation.is_fast() and _is_possible():
        for folder in private_folders():
            with contextlib.suppress(OSError, ValueError):
                validation.use(_Code(_checked(_read(Path(folder, file_name())))))
                break
    return validation.is_fast()


def build_beside() -> threading.Thread | None:
    """Have another process make the code, unless it exists, and load it then; returns the thread that waits for it."""
    if load() or not _is_possible():
        return None

    def work() -> None:
        command = (sys.executable, "-m", "kafka_ds.records.machine_code")
        # Python imports from its working folder first, and the broker's may be writable by others.
        root = Path(__file__).resolve().parents[2]
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=_BUILD_SECONDS_MAX, cwd=root
            )
        except (OSError, subprocess.SubprocessError) as error:
            _LOGGER.warning(
                "validating records without machine code, which is slower: %s",
                error,
            )
        load()

    thread = threading.Thread(target=work, name="machine-code", daemon=True)
    thread.start()
    return thread


def build() -> bool:
    """Make the code (some seconds), unless it exists; whether it does now.

    It may end this process, if this processor does something else than LLVM thinks.
    """
    if not load() and _is_possible():
        with cache_folder() as folder:
            if folder is not None and not load():  # Another process may have made it meanwhile.
                code = _compiled()
                prove(_Code(code))
                _keep(Path(folder), code)
    return load()


def _is_possible() -> bool:
    return sys.platform == "linux" and platform.machine() in MACHINES


def file_name() -> str:
    sources = (validation_loop.__file__, __file__)
    digest = hashlib.sha256(b"".join(Path(source).read_bytes() for source in sources))
    return f"walk-{platform.machine()}-{digest.hexdigest()[:16]}.code"


# -- keeping ------------------------------------------------------------------------------------


def _keep(folder: Path, code: bytes) -> None:
    place = folder / file_name()
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.touch(mode=0o600)
    unfinished.write_bytes(hashlib.sha256(code).digest() + code)
    unfinished.replace(place)


def _read(place: Path) -> bytes:
    with place.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("a file of code that others may write")
        return file.read()


def _checked(content: bytes) -> bytes:
    code = content[_DIGEST_BYTES:]
    if not code or hashlib.sha256(code).digest() != content[:_DIGEST_BYTES]:
        raise ValueError("a file of code that is damaged")
    return code


class _Code:
    """Code in memory of its own, which is written first and can only be executed then."""

    def __init__(self, code: bytes) -> None:
        self._memory = mmap.mmap(
            -1,
            len(code),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
        self._memory.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if protect(address, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "memory cannot be made executable")
        # It takes less time than to let go of the interpreter and get it back.
        self._walk = ctypes.PYFUNCTYPE(
            ctypes.c_int32,
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
        )(address)

    def begin(self, count: int, base_time: int, demands: validation.Demands, room: int) -> Any:
        given = _GIVEN.pack(count, base_time, NO_TIMESTAMP, *demands, room)
        if not room:
            return _SMALLEST_STATE.from_buffer_copy(given)
        kind = _Number * (validation_loop.STATE_NUMBERS + 2 * room + 2)
        return kind.from_buffer_copy(given + bytes(16 * room))

    def walk(self, data: memoryview | bytes, state: Any, *, is_last: bool) -> int:
        place = ctypes.addressof(state)
        end = place + 8 * len(state)
        result, exception = end + 8 * RESULT, end + 8 * EXCEPTION
        status = self._walk(result, exception, _address(data), 0, len(data), is_last, place)
        assert status == 0, "the loop raises nothing, and would leave an old result"
        wrong: int = state[RESULT]
        return wrong


def _address(data: memoryview | bytes) -> int | bytes:
    """Where the bytes lie; a copy of a view that may not be written, as ctypes has no other way."""
    if isinstance(data, bytes):
        return data
    if data.readonly or not data:
        return bytes(data)
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


# -- proving ------------------------------------------------------------------------------------

_PROVED_BYTES = (0x00, 0x01, 0x02, 0x0B, 0x7F, 0x80, 0xFF)
_PROVED_TIME_MS = 1_700_000_000_000


def prove(walker: validation.Walker) -> None:
    """Walk over good and bad records, whole and in pieces; AssertionError where the loop as written finds otherwise."""
    records = [
        Record(0, _PROVED_TIME_MS, None, None),
        Record(1, _PROVED_TIME_MS + 7, b"key", bytes(150), ((b"of a header", b"1"), (b"", None))),
        Record(2, NO_TIMESTAMP, b"", b"value"),
        Record(3, _PROVED_TIME_MS + 3, None, b""),
    ]
    batch = build_batch(records)
    header, whole = read_header(batch), batch[HEADER_BYTES:]
    as_written = validation.AsWritten()
    for sent, cut, demands in _cases(whole):
        found, expected = (
            _steps(
                each, each.begin(header.record_count, header.base_timestamp, *demands), sent, cut
            )
            for each in (walker, as_written)
        )
        assert found == expected, f"{sent.hex()}, cut at {cut}: {found} instead of {expected}"


def _cases(whole: bytes) -> Iterator[tuple[bytes, int, tuple[validation.Demands, int]]]:
    """Records, their pieces, and what is demanded of them."""
    anything = (validation.ANYTHING, 0)
    demanding = (validation.Demands(True, _PROVED_TIME_MS, _PROVED_TIME_MS + 3), 2)
    for cut in range(len(whole) + 1):
        yield from ((whole, cut, demands) for demands in (anything, demanding))
    for cut in (0, len(whole) // 2):
        yield from ((whole, cut, demands) for demands in _demands())
    yield from ((whole[:end], end // 2, anything) for end in range(len(whole)))
    for at in range(len(whole)):
        for byte in _PROVED_BYTES:
            sent = whole[:at] + bytes((byte,)) + whole[at + 1 :]
            yield from ((sent, cut, anything) for cut in (0, at, at // 2))
    yield whole + b"\x00", 0, anything
    # A length in five bytes and in six; a time in ten, which wraps, and in eleven.
    for more in (3, 4):
        yield b"\x8c" + b"\x80" * more + b"\x00" + whole[1:], 0, anything
    for time in (b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 10 + b"\x00"):
        body = b"\x00" + time + b"\x00\x01\x01\x00"
        yield bytes((2 * len(body),)) + body + whole, 0, anything


def _demands() -> Iterator[tuple[validation.Demands, int]]:
    """With each reason to refuse a record, alone and with others, and with room for all and for less."""
    limits = (validation.LONG_MIN, *(_PROVED_TIME_MS + more for more in (-1, 0, 1, 7, 8)), 1 << 62)
    for needs_keys in (False, True):
        for earliest, latest in itertools.combinations_with_replacement(limits, 2):
            yield validation.Demands(needs_keys, earliest, latest), (earliest + latest) % 5


def _steps(walker: validation.Walker, state: Any, sent: bytes, cut: int) -> list[list[int]]:
    """The result and state of a validation after each of two pieces."""
    steps: list[list[int]] = []
    for piece, is_last in ((sent[:cut], False), (sent[cut:], True)):
        data = (sent[steps[0][1 + validation_loop.STOPPED] : cut] if steps else b"") + piece
        wrong = walker.walk(memoryview(bytearray(data)), state, is_last=is_last)
        steps.append(
            [wrong, *state[: validation_loop.STATE_NUMBERS + 2 * state[validation_loop.ROOM]]]
        )
        if wrong != validation_loop.FINE:
            break
    return steps


# -- making -------------------------------------------------------------------------------------


def _compiled() -> bytes:
    """The loop's instructions; AssertionError if they need anything else."""
    import llvmlite.binding

    llvm: Any = llvmlite.binding

    module = llvm.parse_assembly(_numbas())
    for each in (*module.functions, *module.global_variables):
        # numba adds ways to call the loop from Python and from C.
        if not each.is_declaration and not each.name.startswith("_ZN8kafka_ds"):
            each.linkage = "internal"
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(opt=3, reloc="pic", codemodel="small")
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvm.create_pipeline_tuning_options(3)
    passes.run(module, llvm.create_pass_builder(machine, tuning))
    built = llvm.ObjectFileRef.from_data(machine.emit_object(module))  # Its sections live in it.
    sections = {
        each.name().decode(): each.data()
        for each in built.sections()
        if each.name() and each.size()
    }
    others = [name for name in sections if name.startswith((".rela", ".rodata", ".data", ".bss"))]
    assert not others, f"the loop needs {others}"
    return bytes(sections[".text"])


def _numbas() -> str:
    """The loop as numba gives it to LLVM."""
    import numba
    from numba import extending

    known: Any = numba  # Its own annotations lack some.
    options: dict[str, Any] = {"_nrt": False, "forceinline": True}

    for part in (
        validation_loop.varint,
        validation_loop.varlong,
        validation_loop.behind,
        validation_loop.misfit,
        validation_loop.judge,
        validation_loop.whole_record,
        validation_loop.whole_records,
        validation_loop.part_of_record,
    ):
        inlined: Any = extending.register_jitable(**options)
        inlined(part)
    instead: Any = extending.overload
    instead(validation_loop.wrapped, jit_options=options)(lambda number: lambda number: number)
    long, longs = known.types.int64, known.types.CPointer(known.types.int64)
    signature = long(known.types.CPointer(known.types.int8), long, long, long, longs)
    loop = known.njit(signature, nogil=True, error_model="numpy", _nrt=False)(validation_loop.walk)
    text: str = loop.inspect_llvm(loop.signatures[0])
    return text


if __name__ == "__main__":
    sys.exit(0 if build() else 1)
