"""Each setting that Apache Kafka changes at run time (KIP-226) changes here, or is refused by name with a reason."""

import pytest

from broker.config.broker import changeable
from broker.config.dynamic import with_changes
from broker.config.loader import broker_settings, load
from broker.config.unserved import unserved_settings
from kafka_ds.process.settings import ConfigError
from tests.unit.config.kafkas_dynamic import KAFKAS

THREADS = ("log.cleaner.threads", "num.recovery.threads.per.data.dir", "remote.log.reader.threads")


@pytest.mark.parametrize("name", KAFKAS)
def test_a_dynamic_setting_changes_here_or_is_refused_with_a_reason(name: str) -> None:
    if name in changeable():
        return
    with pytest.raises(ConfigError) as refused:
        with_changes(load(None), {"": {name: "1"}})
    setting, text = broker_settings().get(name), str(refused.value)
    assert text.startswith(name)
    if setting is None:
        assert text.endswith(f"is not supported by this broker: {unserved_settings()[name].says}")
    elif setting.sensitive:
        assert "is a secret" in text
    else:
        assert setting.fixed
        assert text.endswith(setting.fixed)


@pytest.mark.parametrize("name", THREADS)
def test_a_number_of_threads_is_in_force_when_it_is_changed(name: str) -> None:
    changed = with_changes(load(None), {"": {name: "4"}})
    assert changed.value_of(name) == 4
