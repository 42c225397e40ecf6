"""What a reload takes over and what waits for a restart."""

from __future__ import annotations

from edgehub.settings import Settings
from edgehub.settings.change import LIVE_KEYS, is_live, plan_change
from edgehub.settings.origin import LoadedSettings, Origin, OriginKind, flat_settings


def _loaded(**settings: object) -> LoadedSettings:
    made = Settings(**settings)
    file = Origin(kind=OriginKind.FILE, place=str(settings.get("data_dir", "a file")))
    return LoadedSettings(settings=made, origins=dict.fromkeys(flat_settings(made), file))


def test_the_live_keys_exist():
    """The list holds no key that the settings do not have."""
    keys = flat_settings(Settings()).keys()
    assert [key for key in LIVE_KEYS if key not in keys] == []


def test_a_key_that_is_not_listed_needs_a_restart():
    """Nothing new is ever ignored in silence."""
    assert not is_live("store.commit_delay_ms")
    assert not is_live("mqtt.port")
    assert not is_live("something.new")
    assert is_live("endpoints.lab.path")
    assert is_live("upstream")


def test_what_can_change_does_and_the_rest_keeps_its_value_and_origin():
    """Values and origins in force are those of the hub that runs, not those of the file."""
    before = _loaded(data_dir="a", mqtt={"port": 1, "clients_max": 5})
    after = _loaded(data_dir="b", mqtt={"port": 2, "clients_max": 6}, drain_timeout_s=1)
    change = plan_change(before, after)
    settings = change.loaded.settings
    assert (str(settings.data_dir), settings.mqtt.port) == ("a", 1)
    assert (settings.mqtt.clients_max, settings.drain_timeout_s) == (6, 1)
    assert change.applied == ("drain_timeout_s", "mqtt.clients_max")
    assert [entry.key for entry in change.needs_restart] == ["data_dir", "mqtt.port"]
    assert str(change.needs_restart[1]) == (
        "mqtt.port = 2 takes effect at the next restart; 1 is in force"
    )
    made = plan_change(_loaded(), _loaded(http={"port": 8080})).needs_restart[0]
    assert (
        str(made) == "http.port = 8080 takes effect at the next restart; until then there is none"
    )
    ended = plan_change(_loaded(http={"port": 8080}), _loaded()).needs_restart[0]
    assert str(ended) == "http.port ends at the next restart; 8080 is in force"
    assert change.loaded.origins["data_dir"].place == "a"
    assert change.loaded.origins["mqtt.clients_max"].place == "b"


def test_origin_of_a_key_is_not_kept_for_one_whose_name_it_begins():
    """`http.host` waits for a restart; `http.host_names` is what the new file says."""
    before = _loaded(data_dir="a", http={"host": "127.0.0.1", "host_names": ["gw"]})
    after = _loaded(data_dir="b", http={"host": "127.0.0.2", "host_names": ["gw"]})
    origins = plan_change(before, after).loaded.origins
    assert (origins["http.host"].place, origins["http.host_names"].place) == ("a", "b")


def test_a_change_that_is_taken_back_waits_for_nothing():
    """The comparison is with what is in force, however many reloads came before."""
    before = _loaded(mqtt={"port": 1})
    pending = plan_change(before, _loaded(mqtt={"port": 2}))
    assert plan_change(pending.loaded, _loaded(mqtt={"port": 1})).needs_restart == ()


def test_equal_settings_change_nothing():
    """Two readings of one file are no change."""
    change = plan_change(_loaded(upstream=MQTT), _loaded(upstream=MQTT))
    assert (change.applied, change.needs_restart) == ((), ())


def test_endpoints_come_and_go_live():
    """What came, went or became another kind is listed by name; what changed, by its keys."""
    lab = {"type": "file", "path": "x"}
    before = _loaded(endpoints={"old": lab, "kind": lab, "same": lab, "path": lab})
    changed = {"kind": MQTT, "same": lab, "path": {**lab, "path": "y"}}
    change = plan_change(before, _loaded(endpoints={"lab": lab, **changed}, upstream=MQTT))
    assert change.applied == (
        "upstream",
        "endpoints.old",
        "endpoints.kind",
        "endpoints.path.path",
        "endpoints.lab",
    )
    assert change.needs_restart == ()
    assert set(change.loaded.settings.endpoints) == {"lab", *changed}


def test_a_list_is_one_key():
    """Texts in a list are no sections."""
    filters = {"local_topics": ["a/#"]}
    change = plan_change(_loaded(), _loaded(mqtt=filters))
    assert [entry.key for entry in change.needs_restart] == ["mqtt.local_topics"]
    (applied,) = plan_change(_loaded(upstream=MQTT), _loaded()).applied
    assert applied == "upstream"


MQTT = {"type": "mqtt", "host": "a"}
