"""The live page: one file, which asks the API for what it shows.

Owns how the page is served. Invariant: it loads nothing but itself, which its policy enforces.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING

from edgehub.web.answers import ApiAnswer
from edgehub.web.routes import ApiRoute

if TYPE_CHECKING:
    from edgehub.web.request import ApiRequest

_PARTS = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def page_route() -> ApiRoute:
    """Return the route."""
    text = resources.files("edgehub.web").joinpath("page.html").read_text("utf-8")
    headers = {"Content-Security-Policy": _policy(text), "X-Frame-Options": "DENY"}

    answer = ApiAnswer(text.encode(), media_type="text/html; charset=utf-8", headers=headers)

    async def page(_request: ApiRequest) -> ApiAnswer:
        return answer

    return ApiRoute("GET", "/", page)


def _policy(text: str) -> str:
    """Allow what stands in the page, and questions to where it came from."""
    sources = {"style": [], "script": []}  # type: dict[str, list[str]]
    for kind, content in _PARTS.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        sources[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(sources['script'])}",
            f"style-src {' '.join(sources['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
