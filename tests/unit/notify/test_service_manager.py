"""What the environment says of the service manager, and the words for it; no sockets."""

from __future__ import annotations

import pytest

from edgehub.notify.service_manager import (
    STATUS_CHARACTERS_MAX,
    ServiceManager,
    extend_timeout,
    monotonic,
    status,
)

OURS = 4711


def test_without_a_socket_there_is_no_listener():
    """Started by hand there is neither a listener nor a watchdog, and telling is harmless."""
    manager = ServiceManager.from_environment({"WATCHDOG_USEC": "30000000"}, pid=OURS)
    assert (manager.listens, manager.watchdog_s) == (False, None)
    manager.notify("STATUS=x")
    manager.change_state("READY=1")


@pytest.mark.parametrize("address", ["/run/systemd/notify", "@of-the-abstract-space"])
def test_paths_and_abstract_names_are_addresses(address):
    """The two forms of unix sockets."""
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": address}, pid=OURS).listens


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_other_addresses_are_no_listener(address):
    """What this cannot reach must not break the start."""
    assert not ServiceManager.from_environment({"NOTIFY_SOCKET": address}, pid=OURS).listens


@pytest.mark.parametrize(
    ("extra", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(OURS)}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_of_another_process_is_ignored(extra, watchdog_s):
    """The variable is inherited by children, for whom it was not meant."""
    environ = {"NOTIFY_SOCKET": "/run/systemd/notify", **extra}
    assert ServiceManager.from_environment(environ, pid=OURS).watchdog_s == watchdog_s


def test_a_status_is_one_line_of_bounded_length():
    """A line break in it would begin another assignment."""
    assert status("a\nREADY=1\n b") == "STATUS=a READY=1 b"
    assert len(status("x" * 10_000)) == len("STATUS=") + STATUS_CHARACTERS_MAX


def test_times_are_whole_microseconds():
    """The protocol knows no fractions."""
    assert extend_timeout(2.5) == "EXTEND_TIMEOUT_USEC=2500000"
    assert monotonic(1.0000009) == "MONOTONIC_USEC=1000000"
