"""Shell: the store behind `lake.uri`, or one line that says why there is none.

What is wrong is said as a mistake in the setting; nothing is written but what shows that of several writers one wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from kafka_ds.delta.store.store import Store, StoreNotExclusive, UnsupportedStore
from kafka_ds.delta.store.uri import probe
from kafka_ds.process.settings import ConfigError
from kafka_ds.topic.lake import open_lake

# The file by which `probe` tries the store, left out of error texts.
_PROBED = re.compile(r"_probe-[0-9a-f]+(?=: )")


def open_exclusive(uri: str) -> Store:
    """The store, once it has shown that of several writers one wins."""
    store = open_lake(uri, is_there=False)
    root = store.local_path("")
    if root is not None and os.path.isfile(root):
        raise UnsupportedStore(f"{uri} is a file: name a folder or a bucket's address")
    probe(store)
    return store


def store_of(uri: str, open_lake: Callable[[str], Store]) -> Store:
    """The store that `open_lake` opens. Raises ConfigError where it cannot."""
    try:
        return open_lake(uri)
    except UnsupportedStore as error:
        raise ConfigError(f"lake.uri: {error}") from None
    except StoreNotExclusive as error:
        raise ConfigError(f"lake.uri={uri}: {error}") from None
    except OSError as error:
        raise ConfigError(f"lake.uri={uri}: {reason(error)}") from None


def reason(error: OSError) -> str:
    """What is wrong, in the words of the system and with the file, or in our own."""
    if error.strerror is None:
        return str(error)
    words = error.strerror.lower()
    message = f"{error.filename}: {words}" if error.filename else words
    return _PROBED.sub("a file cannot be written there", message)
