"""Sign-in: which user names there are, and who gets in under which client id."""

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identities import Identities
from edgehub.heads.mqtt.local.rights import LocalRights
from edgehub.heads.mqtt.sign_in import (
    SignedInClient,
    SignInError,
    UserName,
    parse_user_name,
    sign_in,
)
from edgehub.heads.mqtt.will import will_message
from edgehub.mqtt.packets import Connect, ConnectCode, Will
from tests.support.mqtt_listener import a_space


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dev1", UserName(identity_id="dev1")),
        ("dev1/mod", UserName(identity_id="dev1/mod")),
        ("host/dev1/?api-version=2021-04-12", UserName(identity_id="dev1")),
        ("host/dev1/api-version=2021-04-12", UserName(identity_id="dev1")),
        ("host/dev1/mod/?api-version=1&DeviceClientType=x", UserName(identity_id="dev1/mod")),
        (
            "host/dev1/?api-version=1&model-id=dtmi%3Aa%3Bb&model-id=second",
            UserName(identity_id="dev1", model_id="dtmi:a;b"),
        ),
        ("host/dev1/?x=1", None),
        ("host/dev1/?api-version=", None),
        ("host/dev1/?api-version=%20", None),
        ("dev1/?api-version=1", None),
        ("host//?api-version=1", None),
        ("a/b/c/d/?api-version=1", None),
        ("?api-version=1", None),
    ],
)
def test_user_names(text, expected):
    """Both forms of the dialect and a plain id are read, broken ones are not."""
    assert parse_user_name(text) == expected


def a_connect(client_id="dev1", *, clean=True, user=None, password=None) -> Connect:
    """Build a CONNECT."""
    return Connect(
        level=4,
        client_id=client_id,
        clean_session=clean,
        keep_alive_s=60,
        user_name=user,
        password=password,
        will=None,
    )


@pytest.fixture
def nobody():
    """Identities without an entry."""
    identities = Identities(lambda: None)
    yield identities
    identities.close()


@pytest.mark.parametrize(
    ("connect", "client_id"),
    [
        (a_connect(), "dev1"),
        (a_connect("dev1/mod", clean=False), "dev1/mod"),
        (a_connect(user="dev1"), "dev1"),
        (a_connect(user=""), "dev1"),
        (a_connect("", user="dev1"), "dev1"),
        (a_connect(user="h/dev1/?api-version=1"), "dev1"),
    ],
)
async def test_anonymous(nobody, connect, client_id):
    """Without a password the client id says who it is."""
    client = await sign_in(connect, nobody, anonymous=True, hub_id="hub", address="")
    assert (client.id, client.identity, client.scope) == (client_id, None, None)


async def test_generated_id(nobody):
    """An empty client id with a clean session gets an id of its own each time."""
    first = await sign_in(a_connect(""), nobody, anonymous=True, hub_id="hub", address="")
    second = await sign_in(a_connect(""), nobody, anonymous=True, hub_id="hub", address="")
    assert first.id.startswith("auto-")
    assert first.id != second.id


@pytest.mark.parametrize(
    ("connect", "anonymous", "code"),
    [
        (a_connect("", clean=False), True, ConnectCode.IDENTIFIER),
        (a_connect("a/b/c"), True, ConnectCode.IDENTIFIER),
        (a_connect("a b"), True, ConnectCode.IDENTIFIER),
        (a_connect("a+"), True, ConnectCode.IDENTIFIER),
        (a_connect("a/"), True, ConnectCode.IDENTIFIER),
        (a_connect("x" * 129), True, ConnectCode.IDENTIFIER),
        (a_connect(user="dev2"), True, ConnectCode.IDENTIFIER),
        (a_connect(user="h/dev2/?api-version=1"), True, ConnectCode.IDENTIFIER),
        (a_connect(user="h/dev1/?x=1"), True, ConnectCode.CREDENTIALS),
        (a_connect(user="", password=b""), True, ConnectCode.IDENTIFIER),
        (a_connect(), False, ConnectCode.NOT_AUTHORIZED),
        (a_connect(user="dev1", password=b"pw"), True, ConnectCode.CREDENTIALS),
    ],
)
async def test_refused(nobody, connect, anonymous, code):
    """Bad ids, bad user names and unknown passwords are refused with their own code."""
    with pytest.raises(SignInError) as refused:
        await sign_in(connect, nobody, anonymous=anonymous, hub_id="hub", address="")
    assert refused.value.code is code


def a_will(topic: str = "devices/dev1/messages/events/k=v", body: bytes = b"gone") -> Will:
    """Build a will."""
    return Will(topic=topic.encode(), body=body, qos=1, retain=False)


DEV1 = SignedInClient(id="dev1", identity=None, scope=None, model_id=None)


def a_will_message(will: Will):
    """Build its message for a client with all rights."""
    space = a_space(ManualClock())
    return will_message(will, DEV1, space, LocalRights(), message_bytes_max=1000)


def test_will():
    """A will is a message of the client with a property that says so."""
    message = a_will_message(a_will())
    assert message.sender == "dev1"
    assert message.properties == {"k": "v", "iothub-MessageType": "Will"}
    assert message.body == b"gone"


@pytest.mark.parametrize(
    "will",
    [
        a_will("devices/dev2/messages/events/"),
        a_will("devices/dev1/modules/m/messages/events/"),
        a_will("devices/dev1/messages/devicebound/"),
        a_will("devices/dev1/messages/events/a=1&"),
        a_will("elsewhere"),
        a_will(body=b"x" * 1000),
        Will(topic=b"\xff", body=b"", qos=0, retain=False),
    ],
)
def test_impossible_wills(will):
    """A will that could never be sent is refused at once."""
    with pytest.raises(SignInError) as refused:
        a_will_message(will)
    assert refused.value.code is ConnectCode.NOT_AUTHORIZED
