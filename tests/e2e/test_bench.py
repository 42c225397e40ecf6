"""The bench in its smallest size: what it starts and counts works together."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.bench import growth, peers, svg, thin_link
from tests.bench.tools import build

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", autouse=True)
def load_tool() -> None:
    """Compile it."""
    build()


@pytest.mark.parametrize("name", ["hub", "rabbitmq"])
def test_all_that_is_acknowledged_on_disk_survives_a_kill(name: str, tmp_path: Path) -> None:
    """The far end is away until the program runs again."""
    missing = peers.PEERS[name].missing()
    if missing is not None:
        pytest.skip(missing)
    assert peers.survivors(name, tmp_path, messages=50) == {f"peers_{name}_survivors": 50}


def test_a_peer_is_measured_on_a_disk_as_it_is_and_on_a_slow_one(tmp_path: Path) -> None:
    """Each figure has its cell in the table."""
    disks = {"fast": False, "slow": True}
    figures: dict[str, float] = {}
    for name, slow in disks.items():
        (tmp_path / name).mkdir()
        figures |= peers.speed("bridge", tmp_path / name, slow=slow, seconds=0.02)
    row = next(line for line in peers.table(figures).splitlines() if "Mosquitto bridge |" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    for cell, figure in ((1, "peers_bridge_msgs_s"), (4, "peers_bridge_slow_msgs_s")):
        assert figures[figure] > 0
        assert float(cells[cell].replace(",", "")) == pytest.approx(figures[figure], rel=0.01)


def test_a_series_of_growth_becomes_a_plot(tmp_path: Path) -> None:
    """Two panels with a point for each size."""
    figures = growth.measure(tmp_path, series="endpoints", points=(1, 2), messages=100)
    plot = ET.fromstring(growth.plots(figures)["growth-endpoints.svg"])
    assert len(plot.findall(".//{*}circle")) == 4


def test_values_at_the_axes_of_a_plot_are_whole() -> None:
    """Large ones are neither cut off nor written with an exponent."""
    document = svg.plot("rows", (1, 10_000_000), {"messages/s": (90_000, 1_000_000)})
    texts = {text.text: text for text in ET.fromstring(document).findall(".//{*}text")}
    assert {"10,000,000", "1,000,000", "500,000"} <= texts.keys()
    half_px = 7 * len("10,000,000") / 2
    assert float(texts["10,000,000"].attrib["x"]) + half_px <= svg.WIDTH


def test_alarms_wait_on_a_thin_link(tmp_path: Path) -> None:
    """Longer behind the bulk of a bridge than alone."""
    alone = thin_link.race(tmp_path, name="bare", alarms=1)["thin_link_bare_max_ms"]
    behind = thin_link.race(tmp_path, name="bridge", bulk=40, alarms=1)
    assert behind["thin_link_bridge_max_ms"] > alone > 0
