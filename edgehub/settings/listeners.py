"""Checks of the listeners: ports, certificates, and who could sign in.

Judges from settings and files alone what a listener would refuse once it is bound, so that nothing
listens before. Blocks on the disk. A name other than `localhost` is left to the listener itself:
only the machine knows its addresses.
"""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from edgehub.errors import ConfigError, extra_hint
from edgehub.storage.credentials import tls_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgehub.devices.identities import IdentityList
    from edgehub.settings import HttpSettings, LoraSettings, MqttSettings, Settings, WebSettings


def listener_faults(settings: Settings) -> Iterator[ConfigError]:
    """Return what is wrong with the listeners, apart from who may sign in."""
    mqtt, http, web = settings.mqtt, settings.http, settings.web
    yield from _tls_faults("mqtt", mqtt, mqtt.client_ca_file)
    if http.port is not None:
        yield from _tls_faults("http", http, http.client_ca_file)
    if settings.lora.port is not None:
        yield from _lora_faults(settings.lora)
        if settings.lora.devices_file is not None and settings.affinity.registry == "twin":
            reason = "affinity.registry is twin: keys of devices are in their twins"
            yield ConfigError("lora.devices_file", reason, "remove it")
    if web.port is not None:
        yield from _web_faults(web)
    yield from _shared_ports(settings)


def sign_in_faults(settings: Settings, identities: IdentityList) -> Iterator[ConfigError]:
    """Return the listeners of devices on which no client could sign in."""
    if identities.entries:
        return
    listeners: list[tuple[str, MqttSettings | HttpSettings]] = [("mqtt", settings.mqtt)]
    if settings.http.port is not None:
        listeners.append(("http", settings.http))
    for section, listener in listeners:
        hint = "set mqtt.identities_file and add some with `edgehub identity add`"
        where = f"no client could sign in on {listener.host}:{listener.port}"
        if not listener.anonymous:
            reason = f"{where}: clients without a password are not let in, and there are no"
            yield ConfigError(f"{section}.anonymous", f"{reason} identities", hint)
        elif not _may_be_loopback(listener.host):
            reason = f"{where}: clients without a password are let in on loopback addresses only"
            hint = f"{hint}, or bind {section}.host to 127.0.0.1"
            yield ConfigError(f"{section}.host", f"{reason}, and there are no identities", hint)


def _tls_faults(
    section: str,
    listener: MqttSettings | HttpSettings | LoraSettings | WebSettings,
    client_ca_file: Path | None,
) -> list[ConfigError]:
    if listener.certificate_file is None or listener.key_file is None:
        return []
    return tls_faults(
        section,
        certificate_file=listener.certificate_file,
        key_file=listener.key_file,
        authorities=("client_ca_file", client_ca_file),
    )


def _web_faults(web: WebSettings) -> Iterator[ConfigError]:
    if web.token_file is None and not _may_be_loopback(web.host):
        reason = (
            f"any client that reaches {web.host}:{web.port} could read the API: without tokens it"
            " listens on loopback addresses only"
        )
        hint = (
            "set web.token_file and add one with `edgehub token add`, or bind web.host to 127.0.0.1"
        )
        yield ConfigError("web.host", reason, hint)
    yield from _tls_faults("web", web, None)


def _lora_faults(lora: LoraSettings) -> Iterator[ConfigError]:
    if find_spec("cryptography") is None:
        reason = "LoRaWAN needs cryptography, which this installation does not have"
        yield ConfigError("lora.port", reason, f"{extra_hint('lora')}; or remove the port")
    if not lora.stations:
        yield ConfigError("lora.stations", "no station may connect", "name their ids")
    yield from _tls_faults("lora", lora, lora.client_ca_file)


def _shared_ports(settings: Settings) -> Iterator[ConfigError]:
    # Of two listeners on one address the second would only find out when the first is open.
    mqtt, http, web = settings.mqtt, settings.http, settings.web
    taken: list[tuple[str, str, int]] = []
    for key, host, port in (
        ("mqtt.port", mqtt.host, mqtt.port),
        ("mqtt.tls_port", mqtt.host, mqtt.tls_port if mqtt.certificate_file else None),
        ("mqtt.ws_port", mqtt.host, mqtt.ws_port),
        ("mqtt.wss_port", mqtt.host, mqtt.wss_port),
        ("http.port", http.host, http.port),
        ("lora.port", settings.lora.host, settings.lora.port),
        ("web.port", web.host, web.port),
    ):
        if not port:
            continue
        meets = (name for name, at, used in taken if used == port and _is_shared(host, at))
        other = next(meets, None)
        taken.append((key, host, port))
        if other is not None:
            yield ConfigError(key, f"{port} is {other} already", "choose another, or 0 for any")


def _is_shared(host: str, other: str) -> bool:
    if host == other:
        return True
    try:
        one, two = ipaddress.ip_address(host), ipaddress.ip_address(other)
    except ValueError:
        # The bind resolves a name.
        return False
    # Each family has sockets of its own, so 0.0.0.0 holds no address of IPv6.
    return one.version == two.version and (one.is_unspecified or two.is_unspecified)


def _may_be_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        # A name: the listener looks at the addresses that it has here.
        return True
