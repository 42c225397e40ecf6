"""What a hub lost in the last hour, and dead letters, as warnings of its status."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiomqtt
import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.errors import EdgeHubError
from tests.support.http_peer import Reply, http_peer
from tests.support.manual_hub import publish, queue, running, until

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.hub.hub import Hub

pytestmark = pytest.mark.integration


def warning(hub: Hub, part: str) -> str:
    """Return the only warning that has this text in it."""
    [found] = [text for text in hub.status()["warnings"] if part in text]
    return found


async def test_rows_that_expire_are_a_warning_and_a_log_line(tmp_path: Path) -> None:
    """For an hour, with the number, the queue, and what its endpoint did."""
    clock = ManualClock()
    with capture_logs() as logs:
        async with running(tmp_path, clock) as hub:
            await publish(hub, "bulk", 3)
            await clock.advance(901)
            await until(clock, tmp_path, lambda: queue(hub, "upstream_Pri7")["expired"] == 3)
            assert warning(hub, "expired in the last hour") == (
                "3 messages of upstream_Pri7 expired in the last hour (newest at 22:28 UTC: its"
                " endpoint was not named in the settings; edgehub journal show --event"
                " expired lists them)"
            )
            lines = [line for line in logs if line["event"] == "store.rows_expired"]
            assert sum(line["messages"] for line in lines) == 3
            assert lines[0]["queue"] == "upstream_Pri7"
            shown = hub.operations["journal show"]
            answer = await shown({"event": "expired", "since_s": 60})
            assert [line["queue"] for line in answer["lines"]] == ["upstream_Pri7"] * 3
            assert (answer["found"], answer["complete"]) == (3, True)
            assert (await shown({"event": "expired", "queue": "upstream"}))["lines"] == []
            with pytest.raises(EdgeHubError, match="there is no queue 'other'"):
                await shown({"queue": "other"})
            with pytest.raises(EdgeHubError, match="`event`: want one of enqueued, sent"):
                await shown({"event": "expire"})
            await clock.advance(3660)
            assert (await shown({"event": "expired", "since_s": 60}))["found"] == 0
            assert hub.status()["warnings"] == []


async def test_a_topic_outside_of_the_hubs_is_a_warning(tmp_path: Path) -> None:
    """What MQTT 3.1.1 has a hub acknowledge and drop is named with its topic and client."""
    async with running(tmp_path, ManualClock()) as hub:
        async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="pump-8") as client:
            await client.publish("sensors/pump-8", b"1", qos=1)
        assert warning(hub, "topics outside") == (
            "1 message on topics outside of the hub's was dropped in the last hour"
            " (newest at 22:13 UTC: client pump-8: 'sensors/pump-8'; devices send to"
            " devices/<id>/messages/events/, or to topics of mqtt.local_topics)"
        )


@pytest.mark.parametrize("protocol", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
async def test_a_client_that_sends_for_a_device_outside_of_on_behalf_is_a_warning(
    tmp_path: Path, protocol: aiomqtt.ProtocolVersion
) -> None:
    """With client, device and what to do, whether it was closed over it or refused in words."""
    clock = ManualClock()
    async with running(tmp_path, clock) as hub:
        # A client that was closed cannot sign off, one that was refused sees no error here.
        with contextlib.suppress(aiomqtt.MqttError):
            async with (
                aiomqtt.Client(
                    "127.0.0.1", hub.mqtt_port, identifier="gateway-7", protocol=protocol
                ) as client,
                asyncio.TaskGroup() as tasks,
            ):
                topic = "devices/line-8-x/messages/events/"
                sending = tasks.create_task(client.publish(topic, b"1", qos=1))
                await until(
                    clock,
                    tmp_path,
                    lambda: any("on_behalf" in text for text in hub.status()["warnings"]),
                    tick_s=0.01,
                )
                sending.cancel()
        assert warning(hub, "on_behalf") == (
            "1 message of devices outside of on_behalf of its client was refused in the last hour"
            " (newest at 22:13 UTC: client gateway-7: sent on the topic of 'line-8-x', for which"
            " its identity has no on_behalf pattern; add a pattern to its identity (edgehub"
            " identity set ID --on-behalf ...), then reload)"
        )


async def test_messages_that_no_route_takes_are_a_warning(tmp_path: Path) -> None:
    """In the singular and in the plural, with the properties of the newest one."""
    async with running(tmp_path, ManualClock()) as hub:
        await publish(hub, "odd", 1)
        assert warning(hub, "no route takes it").startswith(
            "1 message was acknowledged and dropped in the last hour, because no route takes it"
            " (newest at 22:13 UTC: /messages/ of device press-1 kind=odd; "
        )
        await publish(hub, "even", 2)
        assert "3 messages were acknowledged" in warning(hub, "kind=even")


async def test_dead_letters_are_a_warning_as_long_as_they_are_kept(tmp_path: Path) -> None:
    """Also after a restart, by queue; not once an operator has removed them."""
    async with http_peer(lambda _records: Reply(400)) as peer:
        upstream = {"type": "http", "url": f"http://127.0.0.1:{peer.port}/in"}
        clock = ManualClock()
        async with running(tmp_path, clock, upstream=upstream) as hub:
            await publish(hub, "alarm", 1)
            await until(clock, tmp_path, lambda: bool(hub.status()["store"]["dead_letter_rows"]))
            text = "1 dead letter of upstream_Pri0 (edgehub queue dead list says why)"
            assert text in hub.status()["warnings"]
        async with running(tmp_path, ManualClock(), upstream=upstream) as hub:
            assert hub.status()["warnings"] == [text]
            await hub.operations["dead purge"]({"dead_letters": [1]})
            assert hub.status()["warnings"] == []


async def test_unusable_messages_about_entities_are_a_warning_and_a_log_line(
    tmp_path: Path,
) -> None:
    """With the text that clients see on the errors topic."""
    clock = ManualClock()
    with capture_logs() as logs:
        async with running(tmp_path, clock, mapper={"enabled": True}) as hub:
            async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="c") as client:
                await client.publish("te/device/main///m/", b"{", qos=1)
            text = warning(hub, "about entities")
            assert text.startswith(
                "1 message about entities could not be used in the last hour (newest at"
                " 22:13 UTC: te/"
            )
            assert text.endswith("; edgehub listen te/errors)")
            assert hub.status()["entities"]["errors_topic"] == "te/errors"
    [line] = [line for line in logs if line["event"] == "mapper.message_unusable"]
    assert (line["messages"], line["newest"].partition(":")[0]) == (1, "te/device/main///m/")
