"""Who may ask: tokens, this machine without one, and what browsers can be talked into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.devices.token_file import Role, Token
from edgehub.devices.tokens import TokenList, Tokens
from edgehub.operations.problem import ProblemError
from edgehub.web.access import Access, Principal

READER, READ = Token.new("reader", Role.READ)
WRITER, WRITE = Token.new("writer", Role.WRITE)
TENANT, CONFINED = Token.new("tenant", Role.WRITE, "acme/press")
LOCAL = {"host": "localhost:8090"}


def an_access(*, tokens: bool, host_names=()) -> Access:
    """Build the rules, with a tokens file or without."""
    in_force = Tokens()
    if tokens:
        entries = {token.name: token for token in (READER, WRITER, TENANT)}
        in_force._list = TokenList(path="tokens", entries=entries)  # noqa: SLF001 - no file here
    return Access(in_force, host_names)


def outcome(
    access: Access,
    method="GET",
    path="/api/v1/status",
    *,
    from_here: bool = True,
    **headers: str,
) -> str:
    """Return the name of who was let in, or the code of the refusal."""
    try:
        return access.check(method, path, headers, from_here=from_here).name
    except ProblemError as problem:
        return problem.code


def bearer(text: str) -> dict[str, str]:
    """Return the header of a token."""
    return {"authorization": f"Bearer {text}"}


def test_roles_decide_what_may_be_done():
    """Reading with either, changing with `write` alone."""
    access = an_access(tokens=True)
    assert outcome(access, **bearer(READ)) == "reader"
    assert outcome(access, **bearer(WRITE)) == "writer"
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "ANYTHING"):
        assert outcome(access, method, **bearer(READ)) == "read_only"
        assert outcome(access, method, **bearer(WRITE)) == "writer"


def test_with_a_tokens_file_no_client_is_let_in_without_one():
    """Not from this machine either; probes and the empty page are for everybody."""
    access = an_access(tokens=True)
    assert outcome(access, **LOCAL) == "unauthorized"
    assert outcome(access, **bearer("writer.wrong")) == "unauthorized"
    assert outcome(access, authorization="Basic YTpi") == "unauthorized"
    for path in ("/", "/healthz", "/readyz"):
        assert outcome(access, path=path) == ""
        assert outcome(access, "POST", path) == "unauthorized"
        assert outcome(access, path=path, **bearer("writer.wrong")) == "unauthorized"


def test_without_a_tokens_file_this_machine_reads():
    """By a name of this machine, and nothing else; a change is refused whatever it is."""
    access = an_access(tokens=False)
    for host in ("localhost", "127.0.0.1:8090", "[::1]:8090", "hub.localhost", "127.9.9.9"):
        assert outcome(access, host=host) == ""
    assert outcome(access, "POST", **LOCAL) == "read_only"
    assert outcome(access, "POST", **LOCAL, **bearer("writer.wrong")) == "unauthorized"


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "192.0.2.7", "127.0.0.1.evil.example"]
)
def test_a_name_that_points_here_is_no_name_of_this_machine(host):
    """A page whose owner lets its name point to 127.0.0.1 reads nothing."""
    assert outcome(an_access(tokens=False), host=host) == "unknown_host"


def test_a_page_of_another_origin_reads_nothing():
    """Browsers say where a question comes from."""
    access = an_access(tokens=False)
    assert outcome(access, **LOCAL, origin="https://evil.example") == "foreign_origin"
    assert outcome(access, **LOCAL, origin="null") == "foreign_origin"
    for site in ("cross-site", "same-site"):
        assert outcome(access, **{**LOCAL, "sec-fetch-site": site}) == "foreign_origin"
    own = {**LOCAL, "origin": "http://localhost:8090", "sec-fetch-site": "same-origin"}
    assert outcome(access, **own) == ""


def test_without_tokens_the_network_reads_nothing():
    """Not even by a name of this machine: a reload may have taken the tokens file away."""
    access = an_access(tokens=False)
    assert outcome(access, from_here=False, **LOCAL) == "unauthorized"
    assert outcome(access, path="/readyz", from_here=False) == ""


def test_names_of_a_proxy_can_be_allowed():
    """Those that the settings name, and no others."""
    access = an_access(tokens=False, host_names=("gateway-7.example.org",))
    assert outcome(access, host="gateway-7.example.org:443") == ""
    assert outcome(access, host="GATEWAY-7.example.org") == ""
    assert outcome(access, host="gateway-8.example.org") == "unknown_host"


def test_a_token_of_a_tenant_stays_with_its_routes():
    """It sees nothing else of the hub."""
    access = an_access(tokens=True)
    principal = access.check("PUT", "/api/v1/routes/r1", bearer(CONFINED), from_here=False)
    assert principal == Principal("tenant", Role.WRITE, "acme/press")
    assert outcome(access, path="/api/v1/routes", **bearer(CONFINED)) == "tenant"
    for path in ("/api/v1/status", "/metrics", "/api/v1/routesx", "/api/v1/table/drift", "/"):
        assert outcome(access, path=path, **bearer(CONFINED)) == "other_tenant"


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80), st.booleans())
def test_headers_of_any_kind_are_looked_at_without_failing(host, origin, authorization, tokens):
    """Nonsense is refused, and lets nobody change anything."""
    access = an_access(tokens=tokens)
    headers = {"host": host, "origin": origin, "authorization": authorization}
    with pytest.raises(ProblemError):
        access.check("POST", "/api/v1/routes", headers, from_here=True)
