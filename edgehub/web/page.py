"""The live page: one file, which asks the API for what it shows.

Owns how the page is served. Invariant: it loads nothing but itself, and the browser is told so.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

_PARTS = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def page_router() -> APIRouter:
    """Make the router."""
    text = resources.files("edgehub.web").joinpath("page.html").read_text("utf-8")
    headers = {"Content-Security-Policy": _policy(text), "X-Frame-Options": "DENY"}
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        """Show the hub to a person; the figures come from the API."""
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    return router


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
