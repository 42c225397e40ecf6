"""Certificate files: what is wrong with one shows as an error that names its setting."""

import os

import pytest

from edgehub.devices.server_tls import common_name, read_server_tls
from edgehub.errors import ConfigError
from tests.support.certificates import NEW_KEY, Authority, openssl

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """One authority for all tests here."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority):
    """Certificate and key of a server."""
    return authority.server()


def test_good_files(authority, server):
    """The fingerprint follows what the files hold, and nothing else."""
    first = read_server_tls("mqtt", *server, None)
    assert read_server_tls("mqtt", *server, None).fingerprint == first.fingerprint
    with_clients = read_server_tls("mqtt", *server, authority.certificate)
    other = read_server_tls("mqtt", *authority.server("other"), None)
    assert len({first.fingerprint, with_clients.fingerprint, other.fingerprint}) == 3


def refused(*files) -> ConfigError:
    """Return the error of bad files."""
    with pytest.raises(ConfigError) as error:
        read_server_tls("mqtt", *files)
    assert error.value.hint
    return error.value


def test_self_signed_next_to_authorities(authority, server, tmp_path):
    """One that could sign others, in any name, is refused; without authorities it may."""
    certificate = tmp_path / "press-1.pem"
    new = ("req", "-x509", *NEW_KEY, "-keyout", str(tmp_path / "key"), "-subj", "/CN=press-1")
    openssl(*new, "-out", str(certificate))
    plain = read_server_tls("mqtt", *server, None, [certificate])
    assert plain.fingerprint != read_server_tls("mqtt", *server, None).fingerprint
    error = refused(*server, authority.certificate, [certificate])
    assert error.key == str(certificate)
    assert "CA:FALSE" in error.hint
    openssl(*new, "-out", str(certificate), "-addext", "basicConstraints=critical,CA:FALSE")
    read_server_tls("mqtt", *server, authority.certificate, [certificate])


def test_files_that_are_not_there(authority, server, tmp_path):
    """Each file has its own key."""
    certificate, key = server
    absent = tmp_path / "absent"
    assert refused(absent, key, None).key == "mqtt.certificate_file"
    assert refused(certificate, absent, None).key == "mqtt.key_file"
    assert refused(certificate, key, absent).key == "mqtt.client_ca_file"
    assert "No such file" in refused(absent, key, None).reason
    assert refused(certificate, authority.certificate.parent, None).key == "mqtt.key_file"


def test_files_that_hold_something_else(authority, server, tmp_path):
    """Swapped, damaged, foreign and encrypted files are told apart."""
    certificate, key = server
    assert "no certificate in PEM" in refused(key, certificate, None).reason
    assert "no private key in PEM" in refused(certificate, certificate, None).reason
    assert "another certificate" in refused(certificate, authority.server("b")[1], None).reason
    damaged = tmp_path / "damaged.pem"
    damaged.write_text(certificate.read_text().replace("M", "N", 20))
    assert refused(damaged, key, None).key == "mqtt.certificate_file"
    assert refused(certificate, key, damaged).key == "mqtt.client_ca_file"
    encrypted = tmp_path / "encrypted.key"
    openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(encrypted))
    error = refused(certificate, encrypted, None)
    assert (error.key, "encrypted" in error.reason) == ("mqtt.key_file", True)
    assert "openssl pkey" in error.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(server, tmp_path):
    """A key of somebody else is told as such."""
    closed = tmp_path / "closed.key"
    closed.write_text("x")
    closed.chmod(0)
    assert "Permission denied" in refused(server[0], closed, None).reason


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        (None, None),
        ({}, None),
        ({"subject": ((("commonName", "dev1"),),)}, "dev1"),
        ({"subject": ((("organizationName", "o"),), (("commonName", "a/b"),))}, "a/b"),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, None),
        ({"subject": ((("organizationName", "o"),),)}, None),
    ],
)
def test_common_names(certificate, expected):
    """One common name is an identity; none or several are not."""
    assert common_name(certificate) == expected
