"""A web server in a thread that takes the records of an HTTP endpoint, and a device that posts."""

from __future__ import annotations

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[["Arrival"], int]

TIMEOUT_S = 10.0


class Arrival:
    """One record of one request, and what it was answered with."""

    def __init__(self, record: dict[str, Any], alone: bool) -> None:
        self.record = record
        self.device: str = record["device"]
        self.body: str = record["body"]
        self.alone = alone
        self.at = time.monotonic()
        self.status = 0


class HttpCollector:
    """Answers each record by `judge`.

    Args:
        judge: Gives the status of one record.
        by_row: Whether the answer names rows; else the worst status is that of the request.
    """

    def __init__(self, judge: Judge, *, by_row: bool = True) -> None:
        self.arrivals: list[Arrival] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = collector._answer(json.loads(body), judge, by_row=by_row)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self.port = self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_arguments: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT_S)

    @property
    def accepted(self) -> list[Arrival]:
        """Records that were answered with success, in order."""
        return [arrival for arrival in self.arrivals if arrival.status < 300]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition on the arrivals holds."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _answer(
        self, records: list[dict[str, Any]], judge: Judge, *, by_row: bool
    ) -> tuple[int, bytes]:
        with self._changed:
            arrived = [Arrival(record, len(records) == 1) for record in records]
            for arrival in arrived:
                arrival.status = judge(arrival)
            worst = max(arrival.status for arrival in arrived)
            if not by_row:
                for arrival in arrived:
                    arrival.status = worst
            self.arrivals += arrived
            self._changed.notify_all()
        if not by_row:
            return worst, b""
        results = [{"id": a.record["id"], "status": a.status} for a in arrived]
        return 200, json.dumps({"results": results}).encode()


class HttpDevice:
    """A client of the HTTP head with one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def post(
        self, device: str, body: str | bytes, *, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post one message or batch; gives status and body of the answer."""
        path = f"/devices/{device}/messages/events?api-version=2020-03-13"
        self._connection.request("POST", path, body, headers or {})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


def batch_of(bodies: Iterator[str] | list[str], **properties: str) -> str:
    """Build a batch of texts with the same properties."""
    named = {f"iothub-app-{name}": value for name, value in properties.items()}
    return json.dumps(
        [{"body": body, "base64Encoded": False, "properties": named} for body in bodies]
    )
