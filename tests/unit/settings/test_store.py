"""What is set about the store is what the store is told, each setting by itself."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from edgehub.hub.store import store_options
from edgehub.settings import ClockSettings, JournalSettings, Settings, StoreSettings
from edgehub.store import Caps, Overflow
from edgehub.store.options import ClockTrust, TtlWhileOff

NONE = {"bytes_max": 0, "free_bytes_min": 0}
CAPS: list[tuple[dict[str, Any], Caps]] = [
    ({}, Caps()),
    ({"rows_max": 7}, Caps(rows=7)),
    ({"bytes_max": 1000}, Caps(bytes=1000)),
    ({"bytes_max": "75%"}, Caps(bytes_percent=75)),
    ({"queue_rows_max": 8}, Caps(queue_rows=8)),
    ({"queue_bytes_max": 9}, Caps(queue_bytes=9)),
    ({"free_bytes_min": 2000}, Caps(free_bytes_min=2000)),
    ({"free_bytes_min": "5%"}, Caps(free_percent=5)),
    *[({"overflow": each.value}, Caps(overflow=each)) for each in Overflow],
]
OTHERS: list[tuple[dict[str, Any], str, Any]] = [
    ({"durable": False}, "durable", False),
    ({"commit_delay_ms": 250}, "commit_delay_ms", 250),
    ({"check_entire_queue_on_cleanup": False}, "check_entire_queue_on_cleanup", False),
    ({"cache_bytes": 5}, "cache_bytes_max", 5),
]


@pytest.mark.parametrize(("given", "caps"), CAPS)
def test_limits_are_those_that_are_set(given: dict[str, Any], caps: Caps):
    """Sizes and shares; 0 is none, never some default; all four policies."""
    assert store_options(Settings(store=StoreSettings(**{**NONE, **given}))).caps == caps


@pytest.mark.parametrize(("given", "name", "value"), OTHERS)
def test_other_settings_arrive_alone(given: dict[str, Any], name: str, value: object):
    """Each changes its own option and no other."""
    before = structs.asdict(store_options(Settings()))
    after = structs.asdict(store_options(Settings(store=StoreSettings(**given))))
    assert {key for key in after if after[key] != before[key]} == {name}
    assert after[name] == value


def test_no_setting_of_the_store_is_left_out():
    """A setting that nothing reads would be accepted and mean nothing."""
    tried = {key for given, *_ in (*CAPS, *OTHERS) for key in given}
    assert tried == set(StoreSettings.model_fields)


def test_what_is_not_set_keeps_all_on_disk():
    """R-04: durable, with limits that a small machine can bear, and a journal."""
    options = store_options(Settings())
    assert options.durable
    assert options.journal
    assert options.caps == Caps(bytes=2**30, free_bytes_min=256 * 2**20)


def test_clock_and_journal_are_passed_on():
    """The store keeps hub time, and what the journal is told."""
    options = store_options(
        Settings(
            clock=ClockSettings(trust="never", ttl_while_off="pause"),
            journal=JournalSettings(enabled=False),
        )
    )
    assert (options.clock_trust, options.ttl_while_off) == (ClockTrust.NEVER, TtlWhileOff.PAUSE)
    assert not options.journal
