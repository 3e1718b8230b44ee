"""Shell: `kafka_ds.records.validation_loop` as machine code, for a process without numba (which costs 100 MiB and 1 s).

- In plain Python the loop takes 26 s of CPU a GB of 100-byte records instead of 0.2.
- numba compiles the loop to 4 KiB without calls or relocations, for the baseline of the architecture. Another process
  does that, tests the code against the loop in Python, and saves it; the file's name has a hash of the sources.
- A file is executed only if no other user may write to it or its folder, and its checksum is right.
- This works on Linux with x86-64 or arm64. Elsewhere, and until the code is there, the loop runs in Python.
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

__all__ = ["build", "build_in_background", "load", "self_test"]

MACHINES = ("x86_64", "aarch64")
_BUILD_SECONDS_MAX = 300
_DIGEST_BYTES = 32
# numba's calling convention writes the result and an exception to memory: here, at the end of the state.
RESULT, EXCEPTION = -2, -1
_Number: Final = ctypes.c_int64
_SMALLEST_STATE: Final = _Number * (validation_loop.STATE_NUMBERS + 2)
# Zeros up to COUNT, the given numbers, and room for those two. (Setting them one by one takes a microsecond more.)
_GIVEN: Final = struct.Struct(
    f"={8 * validation_loop.COUNT}x{validation_loop.STATE_NUMBERS - validation_loop.COUNT}q16x"
)
_LOGGER = logging.getLogger(__name__)


def load() -> bool:
    """Load the saved code of this version and validate records with it; False if there is none."""
    if not validation.is_fast() and _is_possible():
        for folder in private_folders():
            with contextlib.suppress(OSError, ValueError):
                validation.use(MachineCode(_checked(_read(Path(folder, file_name())))))
                break
    return validation.is_fast()


def build_in_background() -> threading.Thread | None:
    """Compile the code in another process, unless it exists, and load it; returns the thread that waits for that."""
    if load() or not _is_possible():
        return None

    def work() -> None:
        command = (sys.executable, "-m", "kafka_ds.records.machine_code")
        # Python imports from its working directory first, and other users may be able to write to the broker's.
        root = Path(__file__).resolve().parents[2]
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=_BUILD_SECONDS_MAX, cwd=root
            )
        except (OSError, subprocess.SubprocessError) as error:
            _LOGGER.warning(
                "Cannot compile the validation of records, which is slower in Python: %s",
                error,
            )
        load()

    thread = threading.Thread(target=work, name="machine-code", daemon=True)
    thread.start()
    return thread


def build() -> bool:
    """Compile, test and save the code (some seconds), unless it exists; False if that is not possible.

    The test crashes this process if the code does not run on this processor.
    """
    if not load() and _is_possible():
        with cache_folder() as folder:
            if folder is not None and not load():  # Another process may have compiled it meanwhile.
                code = _compiled()
                self_test(MachineCode(code))
                _save(Path(folder), code)
    return load()


def _is_possible() -> bool:
    return sys.platform == "linux" and platform.machine() in MACHINES


def file_name() -> str:
    sources = (validation_loop.__file__, __file__)
    digest = hashlib.sha256(b"".join(Path(source).read_bytes() for source in sources))
    return f"validation-{platform.machine()}-{digest.hexdigest()[:16]}.code"


# -- files --------------------------------------------------------------------------------------


def _save(folder: Path, code: bytes) -> None:
    place = folder / file_name()
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.touch(mode=0o600)
    unfinished.write_bytes(hashlib.sha256(code).digest() + code)
    unfinished.replace(place)


def _read(place: Path) -> bytes:
    with place.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("other users may write to the file")
        return file.read()


def _checked(content: bytes) -> bytes:
    code = content[_DIGEST_BYTES:]
    if not code or hashlib.sha256(code).digest() != content[:_DIGEST_BYTES]:
        raise ValueError("the file's checksum is wrong")
    return code


class MachineCode:
    """Executable memory with the code; it is no longer writable then."""

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
        # PYFUNCTYPE keeps the GIL: the code takes less time than releasing and acquiring it.
        self._validate = ctypes.PYFUNCTYPE(
            ctypes.c_int32,
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
        )(address)

    def begin(self, count: int, base_time: int, rules: validation.RecordRules, room: int) -> Any:
        given = _GIVEN.pack(count, base_time, NO_TIMESTAMP, *rules, room)
        if not room:
            return _SMALLEST_STATE.from_buffer_copy(given)
        kind = _Number * (validation_loop.STATE_NUMBERS + 2 * room + 2)
        return kind.from_buffer_copy(given + bytes(16 * room))

    def validate(self, data: memoryview | bytes, state: Any, *, is_last: bool) -> int:
        place = ctypes.addressof(state)
        end = place + 8 * len(state)
        result, exception = end + 8 * RESULT, end + 8 * EXCEPTION
        status = self._validate(result, exception, _address(data), 0, len(data), is_last, place)
        assert status == 0, "the loop raises nothing, and would leave an old result"
        error: int = state[RESULT]
        return error


def _address(data: memoryview | bytes) -> int | bytes:
    """The address of the bytes; a read-only view is copied, because ctypes cannot give its address."""
    if isinstance(data, bytes):
        return data
    if data.readonly or not data:
        return bytes(data)
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


# -- self-test ----------------------------------------------------------------------------------

_TEST_BYTES = (0x00, 0x01, 0x02, 0x0B, 0x7F, 0x80, 0xFF)
_TEST_TIME_MS = 1_700_000_000_000


def self_test(validator: validation.Validator) -> None:
    """Validate good and bad records, whole and in pieces; AssertionError if a result differs from the Python loop's."""
    records = [
        Record(0, _TEST_TIME_MS, None, None),
        Record(1, _TEST_TIME_MS + 7, b"key", bytes(150), ((b"of a header", b"1"), (b"", None))),
        Record(2, NO_TIMESTAMP, b"", b"value"),
        Record(3, _TEST_TIME_MS + 3, None, b""),
    ]
    batch = build_batch(records)
    header, whole = read_header(batch), batch[HEADER_BYTES:]
    by_python = validation.PythonValidator()
    for sent, cut, rules in _cases(whole):
        found, expected = (
            _steps(each, each.begin(header.record_count, header.base_timestamp, *rules), sent, cut)
            for each in (validator, by_python)
        )
        assert found == expected, f"{sent.hex()}, cut at {cut}: {found} instead of {expected}"


def _cases(whole: bytes) -> Iterator[tuple[bytes, int, tuple[validation.RecordRules, int]]]:
    """Records, where to cut them, and the rules with the room for refused ones."""
    no_rules = (validation.NO_RULES, 0)
    strict = (validation.RecordRules(True, _TEST_TIME_MS, _TEST_TIME_MS + 3), 2)
    for cut in range(len(whole) + 1):
        yield from ((whole, cut, rules) for rules in (no_rules, strict))
    for cut in (0, len(whole) // 2):
        yield from ((whole, cut, rules) for rules in _rule_cases())
    yield from ((whole[:end], end // 2, no_rules) for end in range(len(whole)))
    for at in range(len(whole)):
        for byte in _TEST_BYTES:
            sent = whole[:at] + bytes((byte,)) + whole[at + 1 :]
            yield from ((sent, cut, no_rules) for cut in (0, at, at // 2))
    yield whole + b"\x00", 0, no_rules
    # A length in five bytes and in six; a time in ten, which wraps, and in eleven.
    for more in (3, 4):
        yield b"\x8c" + b"\x80" * more + b"\x00" + whole[1:], 0, no_rules
    for time in (b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 10 + b"\x00"):
        body = b"\x00" + time + b"\x00\x01\x01\x00"
        yield bytes((2 * len(body),)) + body + whole, 0, no_rules


def _rule_cases() -> Iterator[tuple[validation.RecordRules, int]]:
    """Each reason to refuse a record, alone and with others, with room for all refused records or for fewer."""
    limits = (validation.LONG_MIN, *(_TEST_TIME_MS + more for more in (-1, 0, 1, 7, 8)), 1 << 62)
    for needs_keys in (False, True):
        for earliest, latest in itertools.combinations_with_replacement(limits, 2):
            yield validation.RecordRules(needs_keys, earliest, latest), (earliest + latest) % 5


def _steps(validator: validation.Validator, state: Any, sent: bytes, cut: int) -> list[list[int]]:
    """The result and state of a validation after each of two pieces."""
    steps: list[list[int]] = []
    for piece, is_last in ((sent[:cut], False), (sent[cut:], True)):
        data = (sent[steps[0][1 + validation_loop.STOPPED] : cut] if steps else b"") + piece
        error = validator.validate(memoryview(bytearray(data)), state, is_last=is_last)
        steps.append(
            [error, *state[: validation_loop.STATE_NUMBERS + 2 * state[validation_loop.ROOM]]]
        )
        if error != validation_loop.VALID:
            break
    return steps


# -- compilation --------------------------------------------------------------------------------


def _compiled() -> bytes:
    """The loop's instructions; AssertionError if they need data or relocations."""
    import llvmlite.binding

    llvm: Any = llvmlite.binding

    module = llvm.parse_assembly(_llvm_ir())
    for each in (*module.functions, *module.global_variables):
        # Drop numba's wrappers for calls from Python and C.
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


def _llvm_ir() -> str:
    """numba's LLVM IR of the loop."""
    import numba
    from numba import extending

    known: Any = numba  # numba's annotations are incomplete.
    options: dict[str, Any] = {"_nrt": False, "forceinline": True}

    for part in (
        validation_loop.varint,
        validation_loop.varlong,
        validation_loop.skip_field,
        validation_loop.field_error,
        validation_loop.check_rules,
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
    loop = known.njit(signature, nogil=True, error_model="numpy", _nrt=False)(
        validation_loop.validate
    )
    text: str = loop.inspect_llvm(loop.signatures[0])
    return text


if __name__ == "__main__":
    sys.exit(0 if build() else 1)
