"""Shell: the store behind an address, and whether it decides between writers as the lake needs it.

The libraries of object stores and of fsspec are loaded only for a lake there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Mapping
from functools import partial
from urllib.parse import unquote, urlsplit

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import (
    NOT_SERVED,
    OBJECT_SCHEMES,
    Store,
    StoreNotExclusive,
    UnsupportedStore,
)

PROBE_WRITERS = 8
PROBE_ROUNDS = 3
# More rounds, for those without a result because answers were lost; and how long a silent store is asked.
PROBE_ROUNDS_MORE = 7
PROBE_PATIENCE_SECONDS = 15.0


def open_store(
    uri: str,
    *,
    mark: str | None = None,
    later_mark: str | None = None,
    private_folder: str | None = None,
) -> Store:
    """The store behind `lake.uri`: a path, a `file:` address, or one of an object store (`clouds.py`).

    A folder that is not there is made by the first write. With `mark`, a folder in it, it is there already: where
    that is missing all requests for what is not there fail with OSError. The others are `LocalStore`'s.
    """
    open_folder = partial(
        LocalStore, mark=mark, later_mark=later_mark, private_folder=private_folder
    )
    parts = urlsplit(uri)
    if parts.scheme in OBJECT_SCHEMES:
        from kafka_ds.delta.store.object_store import ObjectStore

        return ObjectStore(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return open_folder(unquote(parts.path))
    if "://" in uri or parts.scheme == "file":
        raise UnsupportedStore(f"{uri} {NOT_SERVED}")
    if not uri:
        raise UnsupportedStore("the lake's address is empty: name a folder or a bucket's address")
    return open_folder(uri)


def open_for_reading(uri: str, fsspec: str = "") -> Store:
    """The store behind an address that a reader gives; one of another kind than a broker's is fsspec's.

    `fsspec`: options of fsspec's file system, as a JSON object; with any it serves every address. Raises
    UnsupportedStore.
    """
    if fsspec or ("://" in uri and urlsplit(uri).scheme not in (*OBJECT_SCHEMES, "file")):
        from kafka_ds.delta.store.fsspec_store import FsspecStore

        return FsspecStore(uri, fsspec)
    return open_store(uri)


def check_there(store: Store) -> None:
    """Raises FileNotFoundError where there is nothing at a lake's address, as one that is misspelled."""
    if not store.folders(""):
        raise FileNotFoundError(f"{store.uri('')}: there is no lake")


def probe(
    store: Store,
    *,
    rounds: int = PROBE_ROUNDS,
    writers: int = PROBE_WRITERS,
    patience_seconds: float = PROBE_PATIENCE_SECONDS,
) -> None:
    """Race writers for the same names; raises StoreNotExclusive unless each has exactly one winner.

    One store was seen that passes such a test one writer after the other and fails it in a race. A round in which an
    answer was lost has no result, unless two have won: another one is raced, a few times; then raises OSError.
    """
    deadline = time.monotonic() + patience_seconds
    for left in range(rounds + PROBE_ROUNDS_MORE - 1, -1, -1):
        trouble = _race(store, f"_probe-{secrets.token_hex(8)}", writers)
        rounds -= trouble is None
        if rounds <= 0:
            return
        if trouble is None:
            continue
        if left == 0 or isinstance(trouble, PermissionError) or time.monotonic() >= deadline:
            raise trouble


def _race(store: Store, path: str, writers: int) -> OSError | None:
    """Race once; what kept the race from telling anything, or None."""
    results = _answers(store, path, writers)
    try:
        return _judged(store, path, results)
    finally:
        # What was to be found out is found out: one object too many does no harm. A store that is away is left alone.
        if not all(isinstance(each, OSError) for each in results.values()):
            with contextlib.suppress(OSError):
                store.delete(path)


def _judged(store: Store, path: str, results: Mapping[bytes, bool | OSError]) -> OSError | None:
    """What these answers say of the store, in `_race`'s terms."""
    winners = {name for name, answer in results.items() if answer is True}
    error = next((each for each in results.values() if isinstance(each, OSError)), None)
    if error is None:
        try:
            found = store.read(path)
            winners |= {b"late"} if store.put_if_absent(path, b"late") else set()
        except OSError as failure:
            error = failure
        else:
            if winners == {found}:
                return None
            if not winners and found in results:
                # Its own writer got a conflict: it asked twice.
                return OSError(f"{store.uri(path)}: the winner's answer was lost")
    if error is not None and len(winners) <= 1:
        return error
    raise StoreNotExclusive(
        f"{store.uri('')}: {len(winners)} of {len(results)} concurrent conditional writes of one object "
        "succeeded, where exactly one may: the store does not support atomic put-if-absent"
    )


def _answers(store: Store, path: str, writers: int) -> dict[bytes, bool | OSError]:
    """The answers of writers that write the same name at once."""
    barrier = threading.Barrier(writers)
    results: dict[bytes, bool | OSError] = {}

    def write(name: bytes) -> None:
        barrier.wait()
        try:
            results[name] = store.put_if_absent(path, name)
        except OSError as error:
            results[name] = error

    threads = [threading.Thread(target=write, args=(b"%d" % i,)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
