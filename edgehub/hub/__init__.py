"""The assembly of a hub: its parts, one module each, and the one that starts and stops them."""

import sys

if "rich" not in sys.modules:
    # Structlog loads it where it is installed, for tracebacks that it formats; `telemetry.log`
    # does not let it. It would be a twentieth of a hub's memory, and as much of its start.
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import fails as if it were absent
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
