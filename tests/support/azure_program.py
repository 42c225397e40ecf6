"""A device or module on the Azure IoT device SDK: a program of its own, in the SDK's environment.

Takes one JSON document as its argument, commands as JSON lines on standard input, and writes one
JSON line for each answer and for each message that it receives. Of the SDK only the port numbers
are replaced, which it has as constants.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import paho.mqtt.client as paho
from azure.iot.device import X509, Message, MethodRequest, MethodResponse
from azure.iot.device.aio import IoTHubDeviceClient, IoTHubModuleClient
from urllib3 import connection


def replace_ports(ports: dict[str, int]) -> None:
    """Connect to other ports than 8883 and 443."""
    connect = paho.Client.connect

    def connect_elsewhere(self, host, port, keepalive):
        return connect(self, host=host, port=ports[str(port)], keepalive=keepalive)

    paho.Client.connect = connect_elsewhere
    connection.port_by_scheme["https"] = ports.get("https", 443)


def create(options: dict) -> IoTHubDeviceClient | IoTHubModuleClient:
    """Create the client that the options describe."""
    kind = IoTHubModuleClient if options.get("module") else IoTHubDeviceClient
    settings = {"websockets": options["websockets"], "connection_retry_interval": 1}
    if "sastoken_ttl" in options:
        settings["sastoken_ttl"] = options["sastoken_ttl"]
    if options.get("edge"):
        return IoTHubModuleClient.create_from_edge_environment(**settings)
    settings["server_verification_cert"] = Path(options["authority"]).read_text()
    if "key" in options:
        parts = {
            "HostName": "hub.azure-devices.net",
            "DeviceId": options["device"],
            "ModuleId": options.get("module"),
            "SharedAccessKey": options["key"],
            "GatewayHostName": "localhost",
        }
        text = ";".join(f"{name}={value}" for name, value in parts.items() if value)
        return kind.create_from_connection_string(text, **settings)
    names = {"device_id": options["device"]}
    if options.get("module"):
        names["module_id"] = options["module"]
    return kind.create_from_x509_certificate(
        x509=X509(cert_file=options["certificate"], key_file=options["certificate_key"]),
        hostname="localhost",
        **names,
        **settings,
    )


def say(**fields: object) -> None:
    """Write one line."""
    print(json.dumps(fields), flush=True)


def follow(client: IoTHubDeviceClient | IoTHubModuleClient) -> None:
    """Write what is desired of the client, and answer each method with what it is called with."""

    def desired(patch: dict) -> None:
        say(desired=patch)

    async def called(request: MethodRequest) -> None:
        say(called=request.name, payload=request.payload)
        answer = {"echo": request.payload}
        response = MethodResponse.create_from_method_request(request, 200, answer)
        await client.send_method_response(response)

    client.on_twin_desired_properties_patch_received = desired
    client.on_method_request_received = called


async def send(client: IoTHubDeviceClient | IoTHubModuleClient, command: dict) -> None:
    """Send a message, to an output if one is named."""
    message = Message(command["body"])
    message.custom_properties.update(command.get("properties", {}))
    if command.get("output"):
        await client.send_message_to_output(message, command["output"])
    else:
        await client.send_message(message)


async def invoke(client: IoTHubModuleClient, command: dict) -> dict:
    """Call a method of a device or module; returns its answer."""
    return await client.invoke_method(command["call"], command["device"], command.get("module"))


async def run(options: dict) -> None:  # noqa: C901 - a case for each command
    """Serve commands until there are no more."""
    client = create(options)

    def received(message: Message) -> None:
        body = message.data.decode()
        say(received=body, properties=message.custom_properties, input=message.input_name)

    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        action = command["do"]
        twin = answer = None
        try:
            match action:
                case "connect":
                    await client.connect()
                case "listen":
                    client.on_message_received = received
                case "send":
                    await send(client, command)
                case "follow":
                    follow(client)
                case "report":
                    await client.patch_twin_reported_properties(command["patch"])
                case "invoke":
                    answer = await invoke(client, command)
                case "twin":
                    twin = await client.get_twin()
            say(done=action, connected=client.connected, twin=twin, answer=answer)
        except Exception as error:  # noqa: BLE001 - shown to the test
            say(failed=action, error=repr(error), cause=repr(error.__cause__))
    await client.shutdown()


arguments = json.loads(sys.argv[1])
replace_ports(arguments["ports"])
asyncio.run(run(arguments))
