"""Where a message from a broker goes, and whether it is worth another try."""

from __future__ import annotations

from types import SimpleNamespace

from edgehub.heads.broker.dispatcher import BrokerDependencies, Dispatcher
from edgehub.heads.broker.senders import Senders
from edgehub.heads.broker.statistics import BrokerCounters
from edgehub.heads.broker.subscriptions import Subscriptions
from edgehub.mqtt.client_decoder import IncomingPublish


def test_a_local_message_is_tried_again_only_when_there_is_room() -> None:
    """Each try would reach the local clients once more; what is only routed may be tried."""
    has_room = False
    services = BrokerDependencies(
        submit=lambda *_: None,
        space=SimpleNamespace(topic=bytes.decode),
        refused=lambda *_: None,
        has_room=lambda: has_room,
        takes_qos0=lambda: True,
    )
    dispatcher = Dispatcher(
        services,
        ("te/#",),
        hub_id="gw",
        senders=Senders((), hub_id="gw"),
        subscriptions=Subscriptions(("broker", 1883, "gw", 5)),
        counters=BrokerCounters(),
        message_bytes_max=1000,
    )
    local, routed = (
        IncomingPublish(topic=topic, body=b"", packet_id=1, qos=1, size=10)
        for topic in ("te/x", "other")
    )
    assert not dispatcher.may_fit(local)
    assert dispatcher.may_fit(routed)
    has_room = True
    assert dispatcher.may_fit(local)
