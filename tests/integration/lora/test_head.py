"""Stations and devices on a running hub: joins, data up, acknowledgements, and what is refused."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from edgehub.clock import SystemClock
from edgehub.lab.radio.device import ReceivedDownlink
from edgehub.lab.radio.station import SimulatedStation, StationRefusedError
from edgehub.lora.frames import JoinAcceptFields
from edgehub.lora.mac_commands import MacCommand
from tests.support.certificates import Authority
from tests.support.lora import (
    STATIONS,
    ForwardClock,
    a_station,
    abp_session,
    answer,
    joined,
    lora_hub,
    personalised,
    registered,
    uri,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001
NAME = f"{DEV_EUI:016X}"


async def figures(hub: BrokerHub) -> dict[str, Any]:
    """Return the head's figures."""
    return dict(hub.hub.status()["lora"])


async def test_a_device_joins_and_its_data_are_routed(tmp_path: Path) -> None:
    """Join, confirmed and unconfirmed data, an answer in the first window; all on one queue."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        assert station.config["region"] == "EU868"
        assert len(station.config["DRs"]) == 16
        device = await registered(hub, DEV_EUI, name="pump")
        await station.hear(device.join_request())
        accept, message = await answer(station, device)
        assert isinstance(accept, JoinAcceptFields)
        assert len(accept.cf_list) == 16
        assert (message["RxDelay"], message["RX1DR"], message["RX1Freq"]) == (5, 5, 868_100_000)
        assert (message["RX2DR"], message["RX2Freq"]) == (0, 869_525_000)
        assert message["DevEui"] == "70-B3-D5-7E-D0-00-00-01"

        await station.hear(device.uplink(b"\x01\x02"), rssi=-71, snr=7.5)
        await station.hear(device.uplink(b"\x03", f_port=7, confirmed=True))
        received, message = await answer(station, device)
        assert isinstance(received, ReceivedDownlink)
        assert received.frame.ack
        assert (message["RxDelay"], message["rctx"]) == (1, 0)
        await hub.until(lambda: hub.depth() == 2)
        first, second = await hub.rows()
        assert first["device"] == NAME
        assert first["body"] == "\x01\x02"
        assert first["properties"] == {
            "loraPort": "1",
            "loraCounter": "0",
            "loraDevAddr": f"{accept.dev_addr:08X}",
            "loraConfirmed": "false",
            "loraStation": f"{STATIONS[0]:016X}",
            "loraRssi": "-71",
            "loraSnr": "7.5",
            "loraFrequency": "868100000",
            "loraDataRate": "SF7BW125",
        }
        assert second["properties"]["loraPort"] == "7"
        await hub.until(lambda: hub.hub.status()["lora"]["downlinks"].get("sent") == 2)
        shown = await hub.call("lora device show", dev_eui=NAME)
        assert (shown["joins"], shown["f_cnt_up"]) == (1, 1)
        [first_row, other] = (await hub.call("lora station list"))["stations"]
        assert (first_row["connected"], first_row["frames"], first_row["downlinks"]) == (True, 3, 2)
        assert not other["connected"]


async def test_a_device_of_1_1_has_keys_and_counters_of_its_own(tmp_path: Path) -> None:
    """OptNeg, both MICs, encrypted FOpts, and the rekeying handshake."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await joined(hub, station, DEV_EUI, nwk_key=bytes([7] * 16))
        assert device.accept is not None
        assert device.accept.opt_neg
        rekey = MacCommand(name="RekeyInd", values={"minor": 1})
        for number in range(2):
            await station.hear(
                device.uplink(bytes([number]), confirmed=True, commands=(rekey,), f_port=5)
            )
            received, _ = await answer(station, device)
            assert isinstance(received, ReceivedDownlink)
            assert received.frame.ack
            assert received.commands == [MacCommand(name="RekeyConf", values={"minor": 1})]
        assert [row["body"] for row in await hub.rows()] == ["\x00", "\x01"]


async def test_copies_of_one_frame_are_one_message(tmp_path: Path) -> None:
    """Two stations hear it: one row, and the answer leaves through the better one."""
    clock = ForwardClock()
    async with (
        lora_hub(tmp_path, clock=clock) as hub,
        a_station(hub) as near,
        a_station(hub, 1) as far,
    ):
        device = await personalised(hub, DEV_EUI)
        frame = device.uplink(b"once", confirmed=True, commands=(MacCommand(name="LinkCheckReq"),))
        await far.hear(frame, rssi=-110, snr=-3, hz=868_500_000)
        await near.hear(frame, rssi=-40, snr=9)
        received, message = await answer(near, device)
        assert isinstance(received, ReceivedDownlink)
        assert message["RX1Freq"] == 868_100_000
        [check] = received.commands
        assert (check.name, check.values["gw_cnt"]) == ("LinkCheckAns", 2)
        assert far.downlinks.empty()
        assert hub.depth() == 1
        # The device has not heard it: it is answered again, and the message is not stored again.
        clock.later_s += 3
        await near.hear(frame)
        received, _ = await answer(near, device)
        assert isinstance(received, ReceivedDownlink)
        assert received.frame.ack
        assert hub.depth() == 1


async def test_a_station_does_no_more_than_it_may(tmp_path: Path) -> None:
    """It hears best, but answers leave through the other one, and so do joins."""
    near_id = f"{STATIONS[0]:016X}"
    async with (
        lora_hub(tmp_path, listen_only=[near_id], no_joins=[near_id]) as hub,
        a_station(hub) as near,
        a_station(hub, 1) as far,
    ):
        device = await registered(hub, DEV_EUI)
        await near.hear(device.join_request())
        refused = {"join_station_not_allowed": 1}
        await hub.until(lambda: hub.hub.status()["lora"]["joins"] == refused)
        request = device.join_request()
        await near.hear(request)
        await far.hear(request)
        await answer(far, device)
        frame = device.uplink(b"both", confirmed=True)
        await near.hear(frame, rssi=-40)
        await far.hear(frame, rssi=-110)
        await answer(far, device)
        assert near.downlinks.empty()
        rows = (await hub.call("lora station list"))["stations"]
        assert [(row["transmits"], row["takes_joins"]) for row in rows] == [
            (False, False),
            (True, True),
        ]


async def test_sessions_and_counters_survive_a_restart(tmp_path: Path) -> None:
    """A device goes on after the hub was stopped, and no downlink counter comes twice."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await joined(hub, station, DEV_EUI)
        for number in range(3):
            await station.hear(device.uplink(bytes([number]), confirmed=True))
            await answer(station, device)
        old = device.uplink(b"played back")
        await station.hear(old)
        await hub.until(lambda: hub.depth() == 4)
        used = device.f_cnt_down
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        await station.hear(device.uplink(b"again", confirmed=True))
        await answer(station, device)
        assert device.f_cnt_down > used
        await station.hear(old)
        await hub.until(
            lambda: hub.hub.status()["affinity"]["frames"].get("invalid_frame_counter") == 1
        )
        assert hub.depth() == 5


async def test_what_was_stored_before_a_restart_is_answered_and_not_stored_again(
    tmp_path: Path,
) -> None:
    """Its counter was written with its row, not with the tenth frame after it."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await joined(hub, station, DEV_EUI)
        await station.hear(device.uplink(b"first"))
        frame = device.uplink(b"unanswered", confirmed=True)
        await station.hear(frame)
        await hub.until(lambda: hub.depth() == 2)
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        await station.hear(frame)
        received, _ = await answer(station, device)
        assert isinstance(received, ReceivedDownlink)
        assert received.frame.ack
        await station.hear(device.uplink(b"next"))
        await hub.until(lambda: hub.depth() == 3)
        bodies = [row["body"] for row in await hub.rows()]
        assert len(set(bodies)) == 3


async def test_a_counter_passes_65535(tmp_path: Path) -> None:
    """The air has 16 bits of it; MIC, decryption and election have all 32."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI, strict_counters=True)
        for f_cnt in (1, 16_000, 32_000, 48_000, 64_000, 65_535, 65_536, 65_540):
            device.f_cnt = f_cnt
            await station.hear(device.uplink(str(f_cnt).encode()))
        await hub.until(lambda: hub.depth() == 8)
        assert [row["properties"]["loraCounter"] for row in await hub.rows()][-2:] == [
            "65536",
            "65540",
        ]
        assert (await hub.rows())[-1]["body"] == "65540"


async def test_a_device_without_joins_starts_again_where_it_may(tmp_path: Path) -> None:
    """Relaxed counters take counter 0 again; strict ones do not."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        strict = await personalised(hub, DEV_EUI + 1, 0x26000002, strict_counters=True)
        for each in (device, strict):
            each.f_cnt = 40
            await station.hear(each.uplink(b"before"))
            each.f_cnt = 0
            await station.hear(each.uplink(b"after"))
        await hub.until(
            lambda: hub.hub.status()["affinity"]["frames"].get("invalid_frame_counter") == 1
        )
        await hub.until(lambda: hub.depth() == 3)
        bodies = sorted((row["device"], row["body"]) for row in await hub.rows())
        assert bodies == [(NAME, "after"), (NAME, "before"), (f"{DEV_EUI + 1:016X}", "before")]


async def test_two_devices_may_have_one_address(tmp_path: Path) -> None:
    """The MIC says whose frame it is; one of neither is dropped and leaves no trace."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        other = await personalised(hub, DEV_EUI + 1)
        await hub.call(
            "lora device add",
            dev_eui=f"{DEV_EUI + 1:016X}",
            dev_addr="26000001",
            nwk_s_key="aa" * 16,
            app_s_key="bb" * 16,
            replace=True,
        )
        other.personalise(0x26000001, abp_session(b"\xaa" * 16, b"\xbb" * 16))
        await station.hear(device.uplink(b"one"))
        await station.hear(other.uplink(b"two"))
        other.personalise(0x26000001, abp_session(b"\xac" * 16, b"\xbb" * 16))
        await station.hear(other.uplink(b"forged"))
        other.personalise(0x01020304, abp_session(b"\xac" * 16, b"\xbb" * 16))
        await station.hear(other.uplink(b"of another network"))
        frames = {"processed": 2, "no_device_by_mic": 1, "no_device_by_address": 1}
        await hub.until(lambda: hub.hub.status()["affinity"]["frames"] == frames)
        assert [row["device"] for row in await hub.rows()] == [NAME, f"{DEV_EUI + 1:016X}"]
        assert hub.hub.status()["affinity"]["devices"] == 2


async def test_a_used_nonce_is_refused_until_it_is_forgotten(tmp_path: Path) -> None:
    """Also after a restart; a request of an unknown device, or a forged one, changes nothing."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await joined(hub, station, DEV_EUI)
        stranger = await registered(hub, DEV_EUI + 1)
        await hub.call("lora device remove", dev_eui=f"{DEV_EUI + 1:016X}")
        await station.hear(stranger.join_request())
        forged = bytearray(device.join_request())
        forged[-1] ^= 1
        await station.hear(bytes(forged))
        await hub.until(lambda: hub.hub.status()["lora"]["joins"].get("join_join_mic_failed") == 1)
        assert hub.hub.status()["lora"]["joins"]["unknown_device"] == 1
        assert (await hub.call("lora device show", dev_eui=NAME))["joins"] == 1
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device.dev_nonce = 1
        await station.hear(device.join_request())
        await hub.until(lambda: hub.hub.status()["lora"]["joins"].get("join_dev_nonce_used") == 1)
        assert (await hub.call("lora device forget-nonces", dev_eui=NAME))["forgotten"] == 1
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device.dev_nonce = 1
        await station.hear(device.join_request())
        await answer(station, device)


@pytest.mark.parametrize("resend", [True, False])
async def test_an_accept_that_was_lost_is_sent_again_where_it_may(
    tmp_path: Path, resend: bool
) -> None:
    """With `join_resend` the same accept, until data come; else the nonce is used."""
    clock = ForwardClock()
    async with (
        lora_hub(tmp_path, clock=clock, join_resend=resend) as hub,
        a_station(hub) as station,
    ):
        device = await registered(hub, DEV_EUI)
        request = device.join_request()
        await station.hear(request)
        _, first = await answer(station, device)
        clock.later_s += 6
        await station.hear(request)
        await hub.until(lambda: hub.hub.status()["lora"]["joins"].get("join_dev_nonce_used") == 1)
        if not resend:
            await hub.until(lambda: hub.hub.status()["lora"]["busy"] == 0)
            assert station.downlinks.empty()
            return
        _, second = await answer(station, device)
        assert second["pdu"] == first["pdu"]
        assert hub.hub.status()["lora"]["joins"]["join_resent"] == 1
        await station.hear(device.uplink(b"data"))
        await hub.until(lambda: hub.depth() == 1)


async def test_only_known_stations_get_in(tmp_path: Path) -> None:
    """By id, by token, and by a path that stations have."""
    token = tmp_path / "token"
    token.write_text("Bearer station-secret\n")
    token.chmod(0o600)
    async with lora_hub(tmp_path, token_file=str(token)) as hub:
        headers = {"Authorization": "Bearer station-secret"}
        clock = SystemClock()
        stranger = SimulatedStation(uri(hub), 0xDEAD, clock=clock, headers=headers)
        with pytest.raises(StationRefusedError, match=r"not among lora\.stations"):
            await stranger.__aenter__()
        for path in ("/router-data/dead", "/router-data/x", "/metrics"):
            with pytest.raises(InvalidStatus, match=r"40[34]"):
                async with connect(uri(hub) + path, additional_headers=headers, proxy=None):
                    pass
        with pytest.raises(InvalidStatus, match="401"):
            async with a_station(hub):
                pass
        async with SimulatedStation(uri(hub), STATIONS[0], clock=clock, headers=headers):
            pass


async def test_a_token_that_was_changed_counts_after_a_reload(tmp_path: Path) -> None:
    """For connections from then on; the one that is there stays."""
    token = tmp_path / "token"
    token.write_text("first\n")
    token.chmod(0o600)
    clock = SystemClock()

    def station(number: int, text: str) -> SimulatedStation:
        headers = {"Authorization": text}
        return SimulatedStation(uri(hub), STATIONS[number], clock=clock, headers=headers)

    async with lora_hub(tmp_path, token_file=str(token)) as hub, station(0, "first") as connected:
        token.write_text("second\n")
        answered = await hub.call("config reload")
        assert answered["files_changed"] == ["lora.token_file"]
        with pytest.raises(InvalidStatus, match="401"):
            async with station(1, "first"):
                pass
        async with station(1, "second"):
            device = await personalised(hub, DEV_EUI)
            await connected.hear(device.uplink(b"still here"))
            await hub.until(lambda: hub.depth() == 1)


async def test_a_station_with_tls_shows_its_own_certificate(tmp_path: Path) -> None:
    """Its common name is its id; the address that discovery returns is encrypted too."""
    authority = Authority(tmp_path)
    certificate_file, key_file = authority.server()
    lora = {
        "certificate_file": str(certificate_file),
        "key_file": str(key_file),
        "client_ca_file": str(authority.certificate),
    }
    own = ssl.create_default_context(cafile=authority.certificate)
    own.check_hostname = False
    own.load_cert_chain(*authority.client(f"{STATIONS[0]:016X}"))
    async with lora_hub(tmp_path, **lora) as hub:
        clock = SystemClock()
        async with SimulatedStation(uri(hub, "wss"), STATIONS[0], clock=clock, tls=own) as station:
            device = await personalised(hub, DEV_EUI)
            await station.hear(device.uplink(b"encrypted"))
            await hub.until(lambda: hub.depth() == 1)
        with pytest.raises(StationRefusedError, match="certificate is not that of station"):
            async with SimulatedStation(uri(hub, "wss"), STATIONS[1], clock=clock, tls=own):
                pass


async def test_the_newest_connection_of_a_station_counts(tmp_path: Path) -> None:
    """The end of the older one does not remove it."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as older:
        device = await personalised(hub, DEV_EUI)
        async with a_station(hub) as newer:
            async with asyncio.timeout(5):
                await older.closed()
            await newer.hear(device.uplink(b"x", confirmed=True))
            await answer(newer, device)
            [row, _] = (await hub.call("lora station list"))["stations"]
            assert (row["connected"], row["connects"]) == (True, 2)


async def test_junk_of_a_station_is_counted_and_nothing_more(tmp_path: Path) -> None:
    """Broken JSON, missing members and broken frames leave connection and state as they were."""
    upinfo = {"rctx": 2**62, "xtime": 2**62 + 1, "rssi": -50, "snr": 5}
    radio = {"DR": 5, "Freq": 868_100_000, "upinfo": upinfo}
    junk: list[Any] = [
        [],
        {"msgtype": "updf"},
        {"msgtype": "updf", **radio},
        {"msgtype": "jreq", "MHdr": 0, **radio},
        {"msgtype": "jreq", "MHdr": 0, "JoinEui": 7, "DevEui": "x", **radio},
    ]
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        for message in junk:
            await station.send(message)
        device = await personalised(hub, DEV_EUI)
        frame = device.uplink(b"fine", confirmed=True)
        await station.hear(frame[:-1])
        await station.hear(frame, dr=99)
        await station.hear(frame, hz=915_000_000)
        await hub.until(lambda: hub.hub.status()["lora"]["refused"] == len(junk) + 2)
        await hub.until(lambda: hub.hub.status()["affinity"]["frames"] == {"no_device_by_mic": 1})
        await station.hear(device.uplink(b"fine", confirmed=True))
        received, _ = await answer(station, device)
        assert isinstance(received, ReceivedDownlink)


async def test_times_of_a_station_come_back_exactly(tmp_path: Path) -> None:
    """`xtime` and `rctx` are numbers of 64 bits."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        times = {"rctx": 2**62 + 3, "xtime": 2**62 + 1}
        hear = station.send

        async def exact(message: dict[str, Any]) -> None:
            await hear({**message, "upinfo": {**message["upinfo"], **times}})

        station.send = exact  # type: ignore[method-assign, assignment]
        await station.hear(device.uplink(b"x", confirmed=True))
        station.send = hear  # type: ignore[method-assign]
        _, message = await answer(station, device)
        assert {name: message[name] for name in times} == times


async def test_a_station_that_repeats_itself_is_left_alone(tmp_path: Path) -> None:
    """400 copies are one message, and a warning names the station (field report A-09)."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        frame = device.uplink(b"once")
        for _ in range(400):
            await station.hear(frame)
        await hub.until(lambda: hub.hub.status()["lora"]["loops"] == 388)
        await hub.until(lambda: hub.depth() == 1)
        name = f"{STATIONS[0]:016X}"
        assert any(name in text and "without end" in text for text in hub.hub.status()["warnings"])
