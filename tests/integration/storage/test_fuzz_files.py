"""Files that operators and earlier runs leave: damaged ones are read, or refused as documented."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from contextlib import closing
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.control.server import ControlServer
from edgehub.devices.identity_file import IdentityFileError, read_identities
from edgehub.devices.token_file import Role, Token, TokenFileError, read_tokens
from edgehub.errors import StartupError
from edgehub.heads.broker.subscriptions import Subscriptions
from edgehub.hub_id import is_hub_id, load_hub_id, stored_hub_id
from edgehub.journal.exports import ExportBook
from edgehub.journal.segments import Segments
from edgehub.journal.trace import Passed, trace
from edgehub.settings import SettingsError, load_settings
from edgehub.settings.loading import find_hub
from edgehub.store.salvage.pages import PAGE_BYTES, PageError, PageFile, RecordReader
from edgehub.store.salvage.table_list import TableList, list_path, read_table_list
from tests.support.fuzzing import JSON_PIECES, bounded, fuzzer, hostile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

HASH = "$scrypt$ln=14,r=8,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + "A" * 43
IDENTITIES = [
    f'{{"id":"press-1","password":"{HASH}"}}\n'.encode(),
    f'{{"id":"gw/cam","password":"{HASH}","on_behalf":["*","a[b-c]?"],"tenant":"acme/press",'
    f'"publish":["a/{{id}}/#"],"subscribe":[],"disabled":true}}\n\n'.encode(),
]
TOKENS = [
    orjson.dumps({"name": "grafana", "role": role, "hash": Token.new("a", role)[0].hash})
    for role in Role
]
LINES = [*JSON_PIECES, b"{id}", b"+", b"#", b"[!", b"[z-a]", b"ln=63", b"r=0", b"\xe2\x80\xa8"]
SETTINGS = [
    b'data_dir = "data"\n[mqtt]\nport = 1883\n[upstream]\ntype = "mqtt"\nhost = "h"\nport = 1883\n',
    b'hub_id = "gw"\n[web]\nport = 0\n[endpoints.lab]\ntype = "http"\nurl = "https://h/x"\n',
    b'[store]\nmax_bytes = "75%"\n[http]\nport = 8080\n[broker]\nhost = "b"\n',
]
TOML_PIECES = [
    *[
        b"[",
        b"]",
        b"[[",
        b"=",
        b'"""',
        b"'",
        b"\\u0000",
        b"\\ud800",
        b"1979-05-27",
        b"nan",
        b"\xff",
    ],
    *[b"a=" + b"[" * 3_000, b"a.b" * 1_000, b"9" * 5_000, b"0x" + b"f" * 5_000, b"\xef\xbb\xbf"],
]


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all inputs, which replace each other."""
    return tmp_path_factory.mktemp("hostile")


@fuzzer
@given(hostile(IDENTITIES, LINES))
def test_damaged_identities_are_read_or_refused_with_their_lines(folder, content):
    """Each fault names file and line, and can be printed."""
    file = folder / "identities"
    file.write_bytes(content)
    found = bounded(lambda: read_identities(file), IdentityFileError)
    if isinstance(found, IdentityFileError):
        assert all(fault.key.startswith(str(file)) for fault in found.faults)
        return
    for identity in found.values():
        identity.scope()


@fuzzer
@given(hostile(TOKENS, LINES))
def test_damaged_tokens_are_read_or_refused_with_their_lines(folder, content):
    """Each fault names file and line; no text opens a damaged entry."""
    file = folder / "tokens"
    file.write_bytes(content)
    found = bounded(lambda: read_tokens(file), TokenFileError)
    if isinstance(found, TokenFileError):
        assert all(fault.key.startswith(str(file)) for fault in found.faults)
        return
    assert not any(token.matches("") for token in found.values())


@fuzzer
@given(hostile(SETTINGS, TOML_PIECES))
def test_damaged_settings_are_read_or_refused(folder, content):
    """Each fault names what is wrong; where the hub is can be found, or not."""
    file = folder / "edgehub.toml"
    file.write_bytes(content)
    found = bounded(lambda: load_settings(file), SettingsError, cpu_s=1.0, memory_bytes=2**25)
    assert not isinstance(found, SettingsError) or all(map(str, found.faults))
    find_hub(file)


@fuzzer
@given(hostile([b"gw-1a2b\n", b"site:a.b_c-d\n"], [b"/", b"+", b"#", b"\0", b" ", b"a" * 200]))
def test_a_damaged_hub_id_is_used_or_refused(folder, content):
    """It is never replaced: peers know the hub by it."""
    file = folder / "hub_id"
    file.write_bytes(content)
    found = bounded(lambda: load_hub_id(folder, None), StartupError)
    if isinstance(found, StartupError):
        assert stored_hub_id(folder) is None
    else:
        assert is_hub_id(found)
        assert stored_hub_id(folder) == found
    assert file.read_bytes() == content


def a_list() -> bytes:
    """Write down two subscriptions of a session."""
    wires = [
        {"session": ["b", 1883]},
        {"subscriptions": ["a/#", "$share/g/b"], "established": ["a/#"]},
    ]
    return orjson.dumps(wires[0] | wires[1])


@fuzzer
@given(hostile([a_list()], [*JSON_PIECES, b"$share/", b"$share/g"]))
def test_a_damaged_list_of_subscriptions_counts_as_none(content):
    """Whatever was restored can be written down and is read the same."""
    found = Subscriptions(["b", 1883])
    bounded(lambda: found.restore(content))
    again = Subscriptions(["b", 1883])
    again.restore(found.document())
    assert [each.wire for each in again] == [each.wire for each in found]


BOOK = orjson.dumps({"/export": {"plan": ["a"], "exported": ["b", "c"], "reached": True}})


@fuzzer
@given(hostile([BOOK], JSON_PIECES))
def test_a_damaged_account_of_exports_counts_as_none(folder, content):
    """At worst segments go again."""
    file = folder / "exports.json"
    file.write_bytes(content)
    book = ExportBook(file)
    assert bounded(lambda: set(book.plan("/export", ["a", "b", "c", "d"]))) <= {"a", "b", "c", "d"}
    book.done("/export", ["a", "b", "c", "d"])
    assert all(isinstance(path, str) for path in ExportBook(file).exported())


TABLES = orjson.dumps(
    {"version": 3, "store_id": "s", "roots": {"row_1": 7}, "queues": [[1, "upstream", 7]]}
)


@fuzzer
@given(hostile([TABLES], JSON_PIECES))
def test_a_damaged_list_of_tables_counts_as_none(folder, document):
    """Whatever stands there under a checksum that fits."""
    database = folder / "queue.db"
    list_path(database).write_bytes(b"%s\n%08x\n" % (document, zlib.crc32(document)))
    found = bounded(lambda: read_table_list(database), memory_bytes=32 * 2**20)
    assert found is None or isinstance(found, TableList)


LINE = (
    b'{"v":1,"event":"%s","commit":%d,"seq":0,"endpoint":"upstream","priority":7,"offset":%d,'
    b'"message":"m-1"}\n'
)
TEXTS = [LINE % (event, n, n) for n, event in enumerate([b"enqueued", b"sent", b"retried"] * 9, 1)]


def a_segment(folder: Path) -> tuple[list[list[object]], Path]:
    """Write a growing segment; returns what is stored of it, and its file."""
    segments = Segments(folder, hub_id="h", store_id="s")
    segment = segments.begin(20_000, 5, 1)
    for start in range(0, len(TEXTS), 9):
        segments.append(segment, TEXTS[start : start + 9])
    return [segment.document()], segments.growing_file(segment)


@fuzzer
@given(st.data())
def test_a_damaged_growing_segment_is_gone_on_with_or_left_out(folder, data):
    """No start fails over it: what is behind its lines goes into another one."""
    documents, file = a_segment(folder / "journal")
    file.write_bytes(data.draw(hostile([file.read_bytes()])))
    segments = Segments(folder / "journal", hub_id="h", store_id="s")
    for segment in bounded(lambda: segments.resume(documents)):
        segments.append(segment, [b'{"more":1}\n'])
        segments.close(segment)
    for closed in segments.closed():
        segments.remove(closed.path)


@fuzzer
@given(st.data())
def test_a_damaged_segment_is_searched_as_far_as_it_can_be_read(folder, data):
    """Lines of the message that are lines, and counts of rows that passed it."""
    file = folder / "segment.jsonl.gz"
    text = b"".join(TEXTS)
    packed = zlib.compressobj(wbits=31)
    whole = packed.compress(text) + packed.flush()
    if data.draw(st.booleans()):
        content = data.draw(hostile([whole]))
    else:
        # Damage that is in the text, under a checksum that fits.
        packed = zlib.compressobj(wbits=31)
        damaged = data.draw(
            hostile([text], [b"9" * 5_000, b'"message":"m-1"', b"\n", b'"offset":'])
        )
        content = packed.compress(damaged) + packed.flush()
    file.write_bytes(content)
    passed = [Passed(endpoint_id="upstream", offset=3)]
    found = bounded(
        lambda: trace([file], "m-1", passed=passed, seconds_max=60, monotonic=lambda: 0.0)
    )
    assert all(isinstance(line, dict) for line in found.lines)
    assert sum(found.overtakers[0].values()) <= text.count(b"\n") + 100


def a_database(folder: Path) -> tuple[bytes, bytes]:
    """Make a database with rows of all sizes in its file and in its log; returns both."""
    path = folder / "whole.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b, c)")
        connection.execute("CREATE TABLE k(a TEXT PRIMARY KEY, b) WITHOUT ROWID")
        rows = [(n, "x" * 7 * n, n / 3) for n in range(120)] + [(500, "y" * 20_000, None)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.executemany(
            "INSERT INTO k VALUES (?, ?)", [(f"k{n}", b"z" * n) for n in range(90)]
        )
        return path.read_bytes(), (folder / "whole.db-wal").read_bytes()


@pytest.fixture(scope="module", name="database")
def fixture_database(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """File and log of one database."""
    return a_database(tmp_path_factory.mktemp("database"))


@fuzzer
@given(data=st.data())
def test_pages_of_a_damaged_database_are_records_or_failures(folder, database, data):
    """Bytes of the file and of its log changed at any place: reading ends and takes little."""
    path = folder / "damaged.db"
    for target, whole in zip((path, folder / "damaged.db-wal"), database, strict=True):
        content = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 6))):
            at = data.draw(st.integers(0, len(content) - 1))
            piece = data.draw(st.binary(min_size=1, max_size=9) | st.just(b"\xff" * 9))
            content[at : at + len(piece)] = piece
        target.write_bytes(content[: data.draw(st.integers(0, 2 * len(content)))])

    def read() -> int:
        count = 0
        with PageFile(path) as pages:
            reader = RecordReader(pages)
            for number in range(1, pages.count + 1):
                try:
                    page = pages.page(number)
                except PageError:
                    continue
                count += sum(1 for _ in reader.records(number, page))
        return count

    assert bounded(read, cpu_s=1.0, memory_bytes=8 * 2**20) >= 0


def test_a_chain_of_pages_in_a_circle_ends(folder):
    """Two overflow pages that name each other: a record is no longer than its file."""
    path = folder / "circle.db"
    leaf = bytearray(PAGE_BYTES)
    leaf[0], leaf[3:5] = 0x0D, (400).to_bytes(2)
    for cell in range(400):
        leaf[8 + 2 * cell : 10 + 2 * cell] = (1_000).to_bytes(2)
    leaf[1_000:1_005] = b"\xff\xff\xff\x7f\x01"
    local = 489 + ((2**28 - 1) - 489) % 4092
    local = 489 if local > 4061 else local
    leaf[1_005 + local : 1_009 + local] = (2).to_bytes(4)
    path.write_bytes(bytes(leaf) + b"".join(n.to_bytes(4) + bytes(4092) for n in (3, 2)))
    with PageFile(path) as pages:
        reader = RecordReader(pages)
        assert bounded(lambda: list(reader.records(1, pages.page(1))), cpu_s=0.5) == []
        assert reader.failures >= 400


REQUESTS = [
    b'{"command":"echo","arguments":{"a":1}}\n',
    b'{"command":"echo"}\n',
    b'{"command":"echo","arguments":{"a":{"b":[]}}}',
]


@fuzzer
@given(hostile(REQUESTS, JSON_PIECES))
def test_damaged_requests_to_the_control_socket_are_answered(tmp_path_factory, content):
    """One answer a line, each a result or an error, and the next client is served."""

    async def echo(arguments):
        return arguments

    async def run() -> list[bytes]:
        path = tmp_path_factory.getbasetemp() / "c.sock"
        server = ControlServer(path, {"echo": echo}, silence_max_s=5)
        await server.open()
        try:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(content)
            writer.write_eof()
            answers = (await reader.read()).split(b"\n")
            writer.close()
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(REQUESTS[0])
            answer = orjson.loads(await reader.readline())
            assert (answer["ok"], answer["result"]) == (True, {"a": 1})
            writer.close()
        finally:
            await server.close()
        return answers

    *answers, rest = asyncio.run(run())
    assert rest == b""
    lines = content.split(b"\n")
    assert len(answers) == len(lines) - (not lines[-1])
    assert all(orjson.loads(answer)["ok"] in {True, False} for answer in answers)
