"""The image itself: built from the checkout, run read-only as its user. As root: `make soak`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.image import Builder, Container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="a root folder and namespaces need root"),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def image(
    debian: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Builder, dict[str, Any]]:
    """Return the image's configuration and where it is."""
    folder = tmp_path_factory.mktemp("images")
    builder = Builder(folder)
    builder.make_base(debian)
    return builder, builder.build(ROOT, wheels, folder / "pip.conf")


@pytest.fixture
def start(
    image: tuple[Builder, dict[str, Any]], tmp_path: Path
) -> Iterator[Callable[[], Container]]:
    """Return a function that starts a container; all of them use one volume."""
    builder, config = image
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    user, _, group = config["User"].partition(":")
    os.chown(volume, int(user), int(group))
    started: list[Container] = []

    def begin() -> Container:
        container = Container(builder.root_of_container(), volume, config)
        started.append(container)
        container.wait_started()
        return container

    yield begin
    for container in started:
        container.close()


def test_state_lives_in_the_volume_alone(start: Callable[[], Container]) -> None:
    """A new container on the old volume has what the first one acknowledged; both end cleanly."""
    first = start()
    assert first.health() == 0
    first.publish(20)
    assert first.stop() == 0
    second = start()
    assert b", 20 waiting" in second.run("edgehub", "status").stdout
    assert second.stop() == 0


def test_two_containers_on_one_volume_are_refused(start: Callable[[], Container]) -> None:
    """The second ends and says why, the first works on."""
    first = start()
    with pytest.raises(AssertionError, match="another"):
        start()
    assert first.health() == 0
    assert first.stop() == 0


def test_the_image_holds_no_tools_to_build_with(image: tuple[Builder, dict[str, Any]]) -> None:
    """Neither pip nor sources, and nothing that the hub's user may change."""
    builder, config = image
    root = Path(builder.root_of_container())
    hub = root / "opt" / "edgehub"
    assert (hub / "bin" / "edgehub").exists()
    assert not (hub / "bin" / "pip").exists()
    assert not (root / "src").exists()
    user = int(config["User"].partition(":")[0])
    owned = [path for path in hub.rglob("*") if path.lstat().st_uid == user]
    assert owned == []
