"""What is said of a `lake.uri` that cannot be used."""

import pytest

from broker.lake_store import open_exclusive, store_of
from kafka_ds.process.settings import ConfigError


def test_a_lake_that_cannot_be_written_is_told_without_the_name_of_a_probe() -> None:
    with pytest.raises(ConfigError) as told:
        store_of("/proc/lake", open_exclusive)
    assert str(told.value).startswith("lake.uri=/proc/lake: a file cannot be written there: ")
