"""Shared access signatures: keys, texts, and what is none."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.mqtt.shared_access import SharedAccessKey, SharedAccessSignature

KEY = SharedAccessKey(bytes(range(32)))


def signed(resource: str, expires: str, key: bytes = KEY.value) -> str:
    """Sign a resource as Microsoft documents it, step by step."""
    encoded = quote(resource, safe="")
    digest = hmac.new(key, f"{encoded}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires}"


@pytest.mark.parametrize(
    ("resource", "identity_id"),
    [
        ("h.azure-devices.net/devices/dev1", "dev1"),
        ("h/devices/dev1/modules/cam", "dev1/cam"),
        ("h/devices/a-b.c%d_e*f?g!h(i)j,k:l=m@n$o'", "a-b.c%d_e*f?g!h(i)j,k:l=m@n$o'"),
    ],
)
def test_the_documented_form(resource, identity_id):
    """A signature made by the documentation holds with its key alone, in any order of fields."""
    text = signed(resource, "1900000000")
    assert KEY.token(resource, 1_900_000_000) == text
    scheme, fields = text.split(" ")
    for each in (text, f"{scheme} {'&'.join(reversed(fields.split('&')))}&skn="):
        signature = SharedAccessSignature.parse(each)
        assert (signature.identity_id, signature.expires_s) == (identity_id, 1_900_000_000)
        assert signature.is_made_with(KEY)
        assert not signature.is_made_with(SharedAccessKey(bytes(32)))


@pytest.mark.parametrize(
    ("old", "new"),
    [("dev1", "dev2"), ("1900000000", "1900000001"), ("h%2F", "H%2F"), ("%2F", "%2f")],
)
def test_a_changed_text(old, new):
    """Whatever is changed afterwards, the signature does not hold."""
    text = signed("h/devices/dev1", "1900000000").replace(old, new)
    assert not SharedAccessSignature.parse(text).is_made_with(KEY)


def test_a_lower_case_encoding():
    """Some clients write %2f: what they signed counts, not how this hub would write it."""
    encoded = "h%2fdevices%2fdev1"
    signature = quote(KEY.sign(f"{encoded}\n1900000000".encode()), safe="")
    text = f"SharedAccessSignature sr={encoded}&sig={signature}&se=1900000000"
    assert SharedAccessSignature.parse(text).is_made_with(KEY)


GOOD = signed("h/devices/dev1", "1900000000")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not SharedAccessSignature"),
        ("SharedAccessSignature", "not SharedAccessSignature"),
        ("Bearer " + GOOD.partition(" ")[2], "not SharedAccessSignature"),
        (GOOD.replace("&se=1900000000", ""), "not SharedAccessSignature"),
        (GOOD.replace("&se=1900000000", "&se="), "not SharedAccessSignature"),
        (GOOD.replace("1900000000", "tomorrow"), "seconds"),
        (GOOD.replace("1900000000", "-1"), "seconds"),
        (GOOD.replace("1900000000", "9" * 5000), "seconds"),
        (GOOD.replace("1900000000", "\u0661"), "seconds"),
        (GOOD + "&se=1", "se twice"),
        (GOOD + "&skn=iothubowner", "policy"),
        (signed("h", "1900000000"), "sr is not"),
        (signed("h/devices/", "1900000000"), "sr is not"),
        (signed("h/devices/dev1/modules/", "1900000000"), "sr is not"),
        (signed("h/devices/dev1/modules/a/b", "1900000000"), "sr is not"),
    ],
)
def test_what_is_no_signature(text, reason):
    """The error says what is wrong."""
    with pytest.raises(ValueError, match=reason):
        SharedAccessSignature.parse(text)


@given(st.text())
def test_any_text(text):
    """Any text is a signature or refused."""
    for each in (text, f"SharedAccessSignature {text}", GOOD + text):
        try:
            SharedAccessSignature.parse(each).is_made_with(KEY)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 bytes"),
        ("AAAA", "3 bytes"),
        (base64.b64encode(bytes(65)).decode(), "65 bytes"),
        ("no base64", "not base64"),
        ("ä" * 32, "not base64"),
    ],
)
def test_what_is_no_key(text, reason):
    """Short and long keys are typing errors."""
    with pytest.raises(ValueError, match=reason):
        SharedAccessKey.parse(text)


def test_a_key_is_not_shown():
    """A key that gets into a log shows nothing of itself."""
    assert SharedAccessKey.parse(KEY.to_text()) == KEY
    assert KEY.to_text() not in repr(KEY)
    assert str(KEY.value) not in repr(KEY)
