"""Results and problems of operations as JSON, the same for every transport.

Statistics count by members of enumerations, which JSON knows as their texts.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def encoded(document: Any) -> bytes:
    r"""Return a document as JSON, without a line break.

    What devices sent may hold numbers of more than 64 bits and halves of characters (`\ud800`),
    which JSON can write and the quick encoder does not.
    """
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()
