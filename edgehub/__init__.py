"""edgehub: a store-and-forward hub for gateways behind thin, broken uplinks."""

from importlib.metadata import version

__version__ = version("edgehub")
