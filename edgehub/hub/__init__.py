"""The assembly of a hub: its parts, one module each, and the one that starts and stops them."""

import sys

if "rich" not in sys.modules:
    # structlog imports rich where it is installed, for tracebacks, which `telemetry.log` has it
    # print without. That would take a twentieth of a hub's memory and of its start.
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import fails as if it were absent
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
