"""edgehub: a store-and-forward hub for gateways behind slow or unreliable uplinks."""

# Here and nowhere else: to read it from the metadata of the package takes a megabyte.
__version__ = "0.1.0"
