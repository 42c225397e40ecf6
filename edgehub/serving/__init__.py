"""The HTTP API of one hub: what it shows, where it listens, and what the parts' errors become."""

from edgehub.serving.serving import Serving, Shown

__all__ = ["Serving", "Shown"]
