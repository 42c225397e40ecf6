"""The configuration: settings, manifest and identities, read and checked together.

Owns the one check that the start, the reload and `edgehub config validate` share. It reads files
and so blocks: the daemon calls it from a thread. Invariant: a `Configuration` that exists can be
put in force as a whole; whatever is wrong anywhere is reported at once.
"""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from edgehub.decoders.scripts import read_scripts
from edgehub.devices.identities import IdentityList, certificate_files, read_identity_list
from edgehub.devices.server_tls import ServerTls, is_replaced, read_server_tls
from edgehub.devices.tokens import TokenList, read_token_list
from edgehub.endpoints.mqtt_topic import TopicTemplate
from edgehub.errors import ConfigError, ConfigurationError, ManifestError, extra_hint
from edgehub.hub_id import stored_hub_id
from edgehub.lora.device import DeviceFormError
from edgehub.lora.device_import import DeviceListError, parse_devices
from edgehub.message import UPSTREAM, EndpointId
from edgehub.mqtt.topic_filter import covers, overlaps
from edgehub.routes.manifest import DEFAULT_MANIFEST, load_manifest
from edgehub.routes.table import RouteTable
from edgehub.settings import MqttEndpointSettings, SettingsError
from edgehub.settings.derived import broker_topics, twin_warnings
from edgehub.settings.listeners import listener_faults, sign_in_faults
from edgehub.settings.loops import loop_warnings
from edgehub.settings.named_files import exposed_files, file_faults, read_digests
from edgehub.settings.sources import source_warnings
from edgehub.settings.windows import window_warnings
from edgehub.storage.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from edgehub.decoders.scripts import DecoderScript
    from edgehub.lora.device import DeviceDescription
    from edgehub.routes.spec import Manifest
    from edgehub.settings import (
        EndpointSettings,
        HttpSettings,
        LoraSettings,
        MqttSettings,
        Settings,
    )
    from edgehub.settings.origin import LoadedSettings, SettingsSource

T = TypeVar("T")

_DECODERS: Final = "lora.decoder_folder"


class Configuration(Struct, frozen=True, kw_only=True):
    """A configuration without faults.

    Attributes:
        loaded: Valid settings, and where each came from.
        manifest: The routes.
        table: The same, compiled.
        identities: Who may sign in.
        tokens: Who may ask the HTTP API.
        tls: Certificate of the MQTT listener, None = it has none.
        http_tls: Certificate of the HTTP head, None = it has none.
        decoders: Scripts of `lora.decoder_folder`, by name; none without stations.
        lorawan_devices: Those of `lora.devices_file`; none without stations.
        files: What other files that settings name hold; see `read_digests`.
        warnings: What an operator should look at; those of the manifest are its own.
    """

    loaded: LoadedSettings
    manifest: Manifest
    table: RouteTable
    identities: IdentityList
    tokens: TokenList
    tls: ServerTls | None
    http_tls: ServerTls | None
    decoders: Mapping[str, DecoderScript]
    lorawan_devices: tuple[DeviceDescription, ...]
    files: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """Those of the manifest as well, in words."""
        return (*map(str, self.manifest.warnings), *self.warnings)

    def certificate_changed(self, before: Configuration) -> bool:
        """Return whether a listener has another certificate than before, or trusts others."""
        return is_replaced(before.tls, self.tls) or is_replaced(before.http_tls, self.http_tls)

    @property
    def settings(self) -> Settings:
        """The settings alone."""
        return self.loaded.settings


def read_settings(source: SettingsSource) -> LoadedSettings:
    """Read the settings; where they are wrong, look into the files that the right part names too.

    Raises:
        ConfigError: With every fault of settings, manifest, identities and named files.
    """
    try:
        return source.read()
    except SettingsError as error:
        try:
            rest, hidden = source.read_rest(error)
        except SettingsError:
            # The file has changed since, or was removed.
            raise error from None
        further = [*hidden, *([] if rest is None else _faults_of_files(rest))]
        if ("web", "token_file") in error.paths:
            # That there is none follows from the taking out.
            further = [fault for fault in further if fault.key != "web.host"]
        if not further:
            raise
        raise ConfigurationError([*error.faults, *further]) from error


def _faults_of_files(loaded: LoadedSettings) -> list[ConfigError]:
    settings = loaded.settings
    try:
        hub_id = settings.hub_id or stored_hub_id(settings.data_dir)
        # Who could sign in depends on what was taken out, so that is left to the next try.
        read_configuration(loaded, hub_id=hub_id or "", starts=False)
    except ConfigurationError as error:
        return list(error.faults)
    return []


def read_configuration(
    loaded: LoadedSettings, *, hub_id: str, starts: bool = True
) -> Configuration:
    """Read what the settings name and check it all.

    Args:
        loaded: Valid settings.
        hub_id: Device id of the hub itself, for conditions that ask for it.
        starts: Refuse a listener without a possible client; a running hub may lose its last one.

    Raises:
        ConfigurationError: With every fault of manifest, identities, topics and named files.
    """
    settings = loaded.settings
    faults: list[ConfigError] = []
    table = _part(faults, lambda: read_table(settings, hub_id=hub_id))
    identities = _part(faults, lambda: read_identity_list(settings.mqtt.identities_file))
    tokens = _part(faults, lambda: read_token_list(settings.web.token_file))
    faults += listener_faults(settings)
    if starts and identities is not None:
        faults += sign_in_faults(settings, identities)
    _part(faults, lambda: _check_redis(settings))
    for key, endpoint in named_endpoints(settings):
        if isinstance(endpoint, MqttEndpointSettings) and endpoint.topic is not None:
            _part(faults, partial(_compile_topic, endpoint.topic, key))
    faults += file_faults(settings)
    faults += _unknown_tenants(settings, identities)
    faults += [] if table is None else _shared_local_topics(settings, table)
    tls = http_tls = None
    if not faults:
        tls = _part(faults, lambda: _read_tls("mqtt", settings.mqtt, identities))
    if not faults and settings.http.port is not None:
        http_tls = _part(faults, lambda: _read_tls("http", settings.http, identities))
    decoders = None if faults else _part(faults, lambda: _read_decoders(settings.lora))
    devices = None if faults else _part(faults, lambda: _read_devices(settings.lora))
    files = None if faults else _part(faults, lambda: read_digests(settings))
    if devices is None:
        raise ConfigurationError(faults)
    if table is None or identities is None or tokens is None or files is None or decoders is None:
        raise ConfigurationError(faults)
    return Configuration(
        loaded=loaded,
        manifest=table.manifest,
        table=table,
        identities=identities,
        tokens=tokens,
        tls=tls,
        http_tls=http_tls,
        decoders=decoders,
        lorawan_devices=devices,
        files={**files, **_digest(settings.lora.decoder_folder, decoders)},
        warnings=(
            *window_warnings(named_endpoints(settings), table.manifest),
            *loop_warnings(settings, named_endpoints(settings), table.mqtt_filters),
            *exposed_files(settings),
            *twin_warnings(settings),
            *_unused_certificates(settings, identities),
            *_endless_signatures(settings, identities),
        ),
    )


def read_table(settings: Settings, *, hub_id: str) -> RouteTable:
    """Read and compile the manifest that the settings name, or the built-in one.

    Raises:
        ConfigError: If it cannot be read.
        ManifestError: With all its faults.
    """
    file = settings.manifest
    names = endpoint_names(settings)
    manifest = DEFAULT_MANIFEST if file is None else load_manifest(file, endpoints=names)
    return compile_table(manifest, settings, hub_id=hub_id)


def compile_table(manifest: Manifest, settings: Settings, *, hub_id: str) -> RouteTable:
    """Compile a manifest against the endpoints of the settings.

    Returns:
        The table; its manifest has in addition the warnings that the settings cause.

    Raises:
        ManifestError: If it names endpoints that the settings do not have.
    """
    found = tuple(source_warnings(settings, manifest))
    if found:
        manifest = replace(manifest, warnings=(*manifest.warnings, *found))
    return RouteTable.compile(manifest, endpoints=endpoint_names(settings), hub_id=hub_id)


def endpoint_names(settings: Settings) -> list[EndpointId]:
    """Return the endpoints that routes may name."""
    return [EndpointId(name) for name in settings.endpoints]


def named_endpoints(settings: Settings) -> Iterator[tuple[str, EndpointSettings]]:
    """Return every endpoint of the settings with the dotted key of its section."""
    if settings.upstream is not None:
        yield UPSTREAM, settings.upstream
    for name, endpoint in settings.endpoints.items():
        yield f"endpoints.{name}", endpoint


def fault_documents(error: ConfigError) -> list[dict[str, Any]]:
    """Take an error apart into its single faults, each with place, reason and hint."""
    if isinstance(error, ManifestError):
        return [
            {
                "key": f"{error.file}: {fault.path}" if fault.path else error.file,
                "reason": fault.message,
                "hint": fault.hint,
                "route": fault.route,
                "line": fault.line,
                "column": fault.column,
            }
            for fault in error.faults
        ]
    if isinstance(error, ConfigurationError):
        return [document for fault in error.faults for document in fault_documents(fault)]
    return [
        {
            "key": error.key,
            "reason": error.reason,
            "hint": error.hint,
            "route": None,
            "line": None,
            "column": None,
        }
    ]


def _part(faults: list[ConfigError], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except ConfigError as error:
        faults.append(error)
    except OSError as error:
        # A file was removed between two looks at it.
        faults.append(ConfigError(str(error.filename), error.strerror or str(error)))
    return None


def _read_tls(
    section: str, listener: MqttSettings | HttpSettings, identities: IdentityList | None
) -> ServerTls | None:
    if listener.certificate_file is None or listener.key_file is None or identities is None:
        return None
    own_certificates = [
        file
        for entry in identities.entries.values()
        for file in certificate_files(identities, entry)
    ]
    return read_server_tls(
        section,
        listener.certificate_file,
        listener.key_file,
        listener.client_ca_file,
        own_certificates,
    )


def _read_decoders(lora: LoraSettings) -> dict[str, DecoderScript]:
    if lora.port is None or lora.decoder_folder is None:
        return {}
    scripts, faults = read_scripts(_DECODERS, lora.decoder_folder)
    if faults:
        raise ConfigurationError(faults)
    return scripts


def _read_devices(lora: LoraSettings) -> tuple[DeviceDescription, ...]:
    file = lora.devices_file
    if lora.port is None or file is None:
        return ()
    try:
        return tuple(parse_devices(read_regular(file).decode("utf-8-sig")))
    except DeviceListError as error:
        raise ConfigurationError(
            [ConfigError("lora.devices_file", f"{file}: {fault}") for fault in error.faults]
        ) from error
    except (DeviceFormError, UnicodeDecodeError) as error:
        raise ConfigError("lora.devices_file", f"{file}: {error}") from error
    except OSError as error:
        raise ConfigError(
            "lora.devices_file",
            f"{file}: {error.strerror or error}",
            "check the path, and that the hub's user may read it",
        ) from error


def _digest(folder: Path | None, scripts: Mapping[str, DecoderScript]) -> dict[str, str]:
    texts = repr(sorted((name, script.source) for name, script in scripts.items()))
    digest = hashlib.sha256(texts.encode(errors="surrogatepass")).hexdigest()
    return {} if folder is None else {_DECODERS: f"{folder}:{digest}"}


def _check_redis(settings: Settings) -> None:
    if settings.redis_keys and find_spec("redis") is None:
        raise ConfigError(
            settings.redis_keys[0],
            "needs the library redis, which this installation does not have",
            f"{extra_hint('redis')}; or choose another",
        )


def _compile_topic(topic: str, key: str) -> TopicTemplate:
    return TopicTemplate(topic, endpoint_id=EndpointId(key), key=f"{key}.topic")


def _unknown_tenants(settings: Settings, identities: IdentityList | None) -> Iterator[ConfigError]:
    # No route could take their messages, which would be acknowledged and dropped.
    for entry in () if identities is None else identities.entries.values():
        if entry.tenant and entry.tenant not in settings.tenants:
            hint = f'add [tenants."{entry.tenant}"] to the settings'
            yield ConfigError(f"identity {entry.id}", f"there is no tenant {entry.tenant}", hint)


def _unused_certificates(settings: Settings, identities: IdentityList) -> Iterator[str]:
    listeners: list[MqttSettings | HttpSettings] = [settings.mqtt]
    if settings.http.port is not None:
        listeners.append(settings.http)
    has_certificate = any(each.certificate_file for each in listeners)
    has_authority = any(each.client_ca_file for each in listeners)
    for entry in identities.entries.values():
        missing = ""
        if entry.certificates or entry.thumbprints:
            missing = "" if has_certificate else "certificate_file and key_file"
        if entry.thumbprints and not missing:
            missing = "" if has_authority else "client_ca_file"
        if missing:
            yield f"identity {entry.id}: its certificates need mqtt.{missing}"


def _endless_signatures(settings: Settings, identities: IdentityList) -> Iterator[str]:
    names = [entry.id for entry in identities.entries.values() if entry.keys]
    if settings.clock.trust == "never" and names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"clock.trust = never: shared access signatures of {names[0]}{more} never expire, as"
            " the hub knows no time of day; write auto or always, or give them passwords or"
            " certificates"
        )


def _shared_local_topics(settings: Settings, table: RouteTable) -> Iterator[ConfigError]:
    # Every hub of the group gets these messages, so a route that shares them says what is not so.
    if settings.broker is None or settings.broker.share_group is None:
        return
    local = broker_topics(settings, settings.broker)
    for each in table.mqtt_filters:
        if any(overlaps(each, own) for own in local) and not any(
            covers(own, each) for own in local
        ):
            reason = f"a route takes {each}, which holds local topics; a group does not share them"
            yield ConfigError("broker.share_group", reason, f"leave {', '.join(local)} out of it")
