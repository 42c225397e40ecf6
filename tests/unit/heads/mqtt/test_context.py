"""What connections share: the topic cache, the memory of limits, wills."""

from edgehub.clock import ManualClock
from edgehub.devices.identities import Identities
from edgehub.heads.mqtt.context import ListenerContext
from edgehub.message import Message, Refusal
from edgehub.mqtt.hub_path import HubPath
from edgehub.settings import MqttSettings
from tests.support.mqtt_listener import STORE_ID, MemorySessions, ScriptedRouter, a_space


def a_context(router: ScriptedRouter | None = None, clock: ManualClock | None = None):
    """Build a context."""
    router = router or ScriptedRouter()
    clock = clock or ManualClock()
    return ListenerContext(
        MqttSettings(),
        clock=clock,
        submit=router.submit,
        link_up=lambda: True,
        space=a_space(clock),
        refused=router.refused,
        identities=Identities(lambda: None),
        hub_path=HubPath(STORE_ID),
        session_store=MemorySessions(),
    )


async def test_topics_are_parsed_once_and_bounded():
    """Steady topics share one value; topics that are all different do not pile up."""
    context = a_context()
    topic = b"devices/d/messages/events/k=v"
    assert context.events_topic(topic) is context.topics[topic]
    for number in range(10_000):
        context.events_topic(b"devices/d/messages/events/n=%d" % number)
    assert len(context.topics) <= 4096
    context.events_topic(b"devices/d/messages/events/k=" + b"x" * 5000)
    assert max(map(len, context.topics)) <= 1024


async def test_limit_closes_are_remembered_for_a_while():
    """The wait counts from the last close, per client, and the memory is bounded."""
    clock = ManualClock()
    context = a_context(clock=clock)
    assert context.limit_wait_s("a") <= 0
    context.note_limit_close("a")
    await clock.advance(4)
    assert context.limit_wait_s("a") == 6
    assert context.limit_wait_s("b") <= 0
    for number in range(10_000):
        context.note_limit_close(f"c{number}")
    assert context.limit_wait_s("a") <= 0
    assert context.limit_wait_s("c9999") == 10


async def test_wills_are_counted():
    """A will that is refused, or comes while the hub leaves, is counted as dropped."""
    router = ScriptedRouter()
    context = a_context(router)
    will = Message("d", None, "/messages/", {}, {}, b"gone")
    router.refusal = Refusal.LIMIT
    context.submit_will(will)
    context.draining = True
    context.submit_will(will)
    assert router.messages == [will]
    assert context.counters.wills_total == 1
    assert {k.value: v for k, v in context.counters.dropped.items() if v} == {
        "limit": 1,
        "closing": 1,
    }
    assert context.backlog.used == 0
