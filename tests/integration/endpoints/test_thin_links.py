"""Pump and endpoints behind thin links: alarms pass the bulk, and the link stays full.

The link carries IP packets between two name spaces where the test may make them, else TCP bytes.
The floors are those of the design: a wait of 1.5 s beyond the bare way, 90 % of the link used.
Each trial prints its figures; `make soak` runs the whole matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.link_trial import trial
from tests.support.thin_path import ProxyPath, thin_path
from tests.support.tun_link import LinkShape

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.link_trial import Trial

pytestmark = [pytest.mark.integration, pytest.mark.waits]

KBIT = 1000
FLOOR_S = 1.5
USED_MIN = 0.9
FIFO_BACKLOG_S = 4
# Twice the round trip passes until a broker that holds confirmations back has told of what arrived
# at a new rate; the kernel's congestion control may take a tenth besides.
CHANGED_USED_MIN = 0.75
# On the thinnest link payloads hold few messages, and behind such a broker they leave gaps.
BATCHES_THIN_HELD_USED_MIN = 0.75
BATCHES_LONG_USED_MIN = 0.85


@pytest.mark.timeout(60)
async def test_alarms_pass_a_saturated_link_and_a_fifo_lets_them_wait(tmp_path: Path) -> None:
    """64 kbit/s, MQTT: within the floor and full; in one queue alarms wait for the backlog."""
    with thin_path(LinkShape(up_bit_s=64 * KBIT)) as path:
        async with trial("mqtt", path, tmp_path, bit_s=64 * KBIT) as measured:
            await measured.saturate(2)
            ours = await measured.measure(5)
            fifo = await measured.measure_fifo(4, backlog_s=4)
    print(f"\npriorities: {ours}\none queue:  {fifo}")
    assert ours.used > USED_MIN
    assert ours.wait_s(0.5) < 0.8
    assert ours.wait_s(0.99) < FLOOR_S
    assert fifo.wait_s(0.5) > 4 * ours.wait_s(0.5)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["mqtt", pytest.param("http", marks=pytest.mark.soak)])
async def test_a_long_round_trip_does_not_empty_the_link(kind: str, tmp_path: Path) -> None:
    """128 kbit/s and 300 ms, towards a broker that holds confirmations back, or a web server."""
    with thin_path(LinkShape(up_bit_s=128 * KBIT, rtt_s=0.3)) as path:
        async with trial(kind, path, tmp_path, bit_s=128 * KBIT) as measured:
            await measured.saturate(4)
            outcome = await measured.measure(5)
    print(f"\n{kind}: {outcome}")
    # Without the search it was an eighth; a busy machine sends late.
    assert outcome.used > 0.6
    # Of so few alarms the worst also holds what else the machine did meanwhile.
    assert outcome.wait_s(0.8) < FLOOR_S


@pytest.mark.timeout(60)
async def test_batches_carry_several_times_as_much(tmp_path: Path) -> None:
    """64 kbit/s: four times the messages of the same link without batches; alarms wait no more."""
    rates = {}
    for kind, seconds in (("mqtt", 3), ("batches", 5)):
        with thin_path(LinkShape(up_bit_s=64 * KBIT)) as path:
            async with trial(kind, path, tmp_path, bit_s=64 * KBIT) as measured:
                await measured.saturate(2)
                outcome = await measured.measure(seconds)
        print(f"\n{kind}: {outcome}")
        rates[kind] = outcome.bodies_s
        assert outcome.wait_s(0.99) < FLOOR_S
    assert rates["batches"] > 4 * rates["mqtt"]


@pytest.mark.soak
@pytest.mark.parametrize("kbit_s", [10, 64, 256])
@pytest.mark.parametrize(("rtt_s", "holds"), [(0.0, True), (0.2, True), (0.6, True), (0.6, False)])
async def test_batches_on_thin_links(
    kbit_s: int, rtt_s: float, holds: bool, tmp_path: Path
) -> None:
    """Telemetry of twenty machines with and without batches: the gain, at no wait for alarms."""
    outcomes = {}
    bit_s = kbit_s * KBIT
    for kind in ("mqtt", "batches"):
        with thin_path(LinkShape(up_bit_s=bit_s, rtt_s=rtt_s)) as path:
            async with trial(kind, path, tmp_path, bit_s=bit_s, holds=holds) as measured:
                await measured.saturate(12)
                outcomes[kind] = await measured.measure(20)
        print(f"\n{kind} {kbit_s} kbit/s {rtt_s} s, holds {holds}: {outcomes[kind]}")
    batches = outcomes["batches"]
    used_min = BATCHES_LONG_USED_MIN if rtt_s else USED_MIN
    if holds and rtt_s and kbit_s <= 10:
        used_min = BATCHES_THIN_HELD_USED_MIN
    assert batches.used > used_min
    assert batches.wait_s(0.99) < FLOOR_S
    assert batches.bodies_s > (2 if kbit_s <= 10 else 5) * outcomes["mqtt"].bodies_s


@pytest.mark.soak
@pytest.mark.parametrize("kbit_s", [10, 64, 256])
@pytest.mark.parametrize("rtt_s", [0.0, 0.6])
@pytest.mark.parametrize("kind", ["mqtt", "http"])
async def test_the_matrix(kind: str, kbit_s: int, rtt_s: float, tmp_path: Path) -> None:
    """Every rate and round trip, with both endpoints: within the floor, full, and no FIFO."""
    bit_s = kbit_s * KBIT
    with thin_path(LinkShape(up_bit_s=bit_s, rtt_s=rtt_s)) as path:
        async with trial(kind, path, tmp_path, bit_s=bit_s) as measured:
            await measured.saturate(12)
            outcome = await measured.measure(25)
            fifo = await measured.measure_fifo(10, backlog_s=FIFO_BACKLOG_S)
    print(f"\n{kind} {kbit_s} kbit/s {rtt_s} s: {outcome}\none queue: {fifo}")
    assert outcome.used > USED_MIN
    assert outcome.wait_s(0.99) < FLOOR_S
    assert fifo.wait_s(0.5) > outcome.wait_s(0.5) + FIFO_BACKLOG_S / 2


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["mqtt", "http"])
@pytest.mark.parametrize("rtt_s", [0.0, 0.6])
@pytest.mark.parametrize("factor", [0.5, 2.0])
async def test_a_link_that_changes(kind: str, rtt_s: float, factor: float, tmp_path: Path) -> None:
    """Half or twice the rate: twelve seconds later all is as on a link that was so ever."""
    with thin_path(LinkShape(up_bit_s=64 * KBIT, rtt_s=rtt_s)) as path:
        async with trial(kind, path, tmp_path, bit_s=64 * KBIT) as measured:
            await measured.saturate(12)
            _change_rate(measured, 64 * KBIT * factor)
            await measured.saturate(12)
            outcome = await measured.measure(20)
    print(f"\n{kind} 64 kbit/s x {factor}, {rtt_s} s: {outcome}")
    assert outcome.used > (CHANGED_USED_MIN if rtt_s else USED_MIN)
    assert outcome.wait_s(0.95) < FLOOR_S


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["mqtt", "http"])
@pytest.mark.parametrize("rtt_s", [0.0, 0.6])
async def test_a_link_that_is_cut(kind: str, rtt_s: float, tmp_path: Path) -> None:
    """Ten seconds of nothing: every alarm arrives, and a short while later all is as before."""
    with thin_path(LinkShape(up_bit_s=64 * KBIT, rtt_s=rtt_s)) as path:
        async with trial(kind, path, tmp_path, bit_s=64 * KBIT) as measured:
            await measured.saturate(10)
            path.cut()
            await measured.saturate(10)
            path.restore()
            await measured.saturate(25)
            outcome = await measured.measure(20)
    print(f"\n{kind} 64 kbit/s {rtt_s} s after a cut: {outcome}")
    assert outcome.used > (CHANGED_USED_MIN if rtt_s else USED_MIN)
    assert outcome.wait_s(0.95) < FLOOR_S


@pytest.mark.soak
@pytest.mark.parametrize(("up_kbit_s", "down_kbit_s"), [(64, 8), (16, 256)])
@pytest.mark.parametrize("rtt_s", [0.0, 0.6])
async def test_an_asymmetric_link(
    up_kbit_s: int, down_kbit_s: int, rtt_s: float, tmp_path: Path
) -> None:
    """Confirmations come over a way that is much thinner, or much wider."""
    shape = LinkShape(up_bit_s=up_kbit_s * KBIT, down_bit_s=down_kbit_s * KBIT, rtt_s=rtt_s)
    with thin_path(shape) as path:
        async with trial("mqtt", path, tmp_path, bit_s=up_kbit_s * KBIT) as measured:
            await measured.saturate(15)
            outcome = await measured.measure(30)
    print(f"\nmqtt {up_kbit_s}/{down_kbit_s} kbit/s {rtt_s} s: {outcome}")
    assert outcome.wait_s(0.99) < FLOOR_S


@pytest.mark.soak
async def test_a_link_that_loses_packets(tmp_path: Path) -> None:
    """One packet of a hundred at 200 ms: TCP stalls now and then, alarms still pass the bulk."""
    with thin_path(LinkShape(up_bit_s=64 * KBIT, rtt_s=0.2, loss=0.01)) as path:
        if isinstance(path, ProxyPath):
            pytest.skip("a proxy loses no packets")
        async with trial("mqtt", path, tmp_path, bit_s=64 * KBIT) as measured:
            await measured.saturate(10)
            outcome = await measured.measure(60)
    print(f"\nmqtt 64 kbit/s 0.2 s, 1 % lost: {outcome}")
    assert outcome.wait_s(0.5) < FLOOR_S


@pytest.mark.soak
async def test_minutes_of_saturation_change_nothing(tmp_path: Path) -> None:
    """The alarms of the sixth minute wait as long as those of the first."""
    with thin_path(LinkShape(up_bit_s=64 * KBIT, rtt_s=0.2)) as path:
        async with trial("mqtt", path, tmp_path, bit_s=64 * KBIT) as measured:
            await measured.saturate(10)
            first = await measured.measure(60)
            await measured.saturate(4 * 60)
            last = await measured.measure(60)
    print(f"\nfirst: {first}\nlast:  {last}")
    assert last.used > USED_MIN
    assert last.wait_s(0.99) < first.wait_s(0.99) + 0.3
    assert last.wait_s(0.99) < FLOOR_S


def _change_rate(measured: Trial, bit_s: float) -> None:
    measured.bit_s = bit_s
    measured.path.change_rate(up_bit_s=bit_s, down_bit_s=bit_s)
