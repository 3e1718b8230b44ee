"""What a run leaves for another one, and that there is one at a time."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from broker.erasure import erasure_state
from broker.erasure.checks import ErasureRefused

NAME = "_erasures/orders.json"


def owned_by(store, **owner):
    found = json.loads(store.read(NAME))
    found["owner"].update(owner)
    store.put_durable(NAME, json.dumps(found).encode())


def claim(store, topic_id="a", *, takes_over=False):
    return erasure_state.claim(store, "orders", topic_id, takes_over=takes_over)


def test_a_second_run_is_refused(store):
    claim(store)
    for other in ({"process": os.getppid()}, {"host": "elsewhere"}):
        owned_by(store, **other)
        with pytest.raises(ErasureRefused, match="another erasure of topic orders runs on"):
            claim(store)
    assert claim(store, takes_over=True).settings == {}
    owned_by(store, host="elsewhere")
    assert claim(store, "of another topic").places == {}


def test_what_a_killed_run_has_left_is_taken_over(store):
    first = claim(store)
    first.settings, first.places = {"a": None}, {0: np.array([1, 2])}
    erasure_state.write(store, "orders", first)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    owned_by(store, process=ended.pid)
    second = claim(store)
    assert (second.settings, second.places[0].tolist()) == ({"a": None}, [1, 2])
    for act in (erasure_state.write, lambda *args: erasure_state.release(*args, is_done=True)):
        with pytest.raises(ErasureRefused, match="has taken over"):
            act(store, "orders", first)


def test_places_stay_until_all_is_proven(store):
    run = claim(store)
    run.settings, run.places = {"a": "1"}, {0: np.array([1, 2])}
    erasure_state.write(store, "orders", run)
    erasure_state.release(store, "orders", run, is_done=False)
    left = claim(store)
    assert (left.settings, left.places[0].tolist()) == ({}, [1, 2])
    erasure_state.release(store, "orders", left, is_done=True)
    assert erasure_state.read(store, "orders", "a") == erasure_state.ErasureState("a")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"topic_id": "a", "places": 1}'])
def test_what_cannot_be_read_is_told_in_one_line(store, data):
    store.put_durable(NAME, data)
    with pytest.raises(ErasureRefused, match="cannot be read"):
        erasure_state.read(store, "orders", "a")
