"""Requests that keep or break rules of HTTP/1, and what both servers of the hub answer."""

from __future__ import annotations

from typing import Final

SERVED: Final = 0

RULES: Final = [
    (b"HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\nHost: localhost", 501),
    (b"HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\nHost: localhost", 501),
    (b"HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nHost: localhost", SERVED),
    (b"HTTP/1.1\r\nTransfer-Encoding: chunked", 400),
    (b"HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: localhost\r\nHost: localhost", 400),
    (b"HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: local host", 400),
    (b"HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: localhost/a", 400),
    (b"HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: user@localhost", 400),
    (b"HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: 127.0.0.1:80", SERVED),
    (b"HTTP/1.0\r\nTransfer-Encoding: chunked\r\nHost: localhost", SERVED),
    (b"HTTP/1.2\r\nTransfer-Encoding: chunked\r\nHost: localhost", SERVED),
    (b"HTTP/1.2\r\nTransfer-Encoding: chunked", 400),
    (b"HTTP/2.0\r\nTransfer-Encoding: chunked\r\nHost: localhost", 505),
    (b"HTTP/0.9\r\nTransfer-Encoding: chunked\r\nHost: localhost", 505),
    (b"HTTP/9.1\r\nTransfer-Encoding: chunked\r\nHost: localhost", 505),
    (b"HTTP/1.x\r\nTransfer-Encoding: chunked\r\nHost: localhost", 400),
]
"""Version and headers of a request with a body in chunks, and the status that refuses it."""

CHUNKS: Final = b"\r\n\r\n1\r\nx\r\n0\r\n\r\n"
"""What follows them."""
