"""JSON out of the hub's own documents.

Owns the encoding. Statistics count by members of enumerations, which JSON knows as their texts.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
from starlette.responses import Response


class JsonResponse(Response):
    """An answer that holds one document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the document."""
        return encoded(content)


def encoded(document: Any) -> bytes:
    r"""Write a document as JSON.

    What devices sent may hold numbers of more than 64 bits and halves of characters (`\ud800`),
    which JSON can write and the quick encoder does not.
    """
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()
