"""edgehub: a store-and-forward hub for gateways behind slow or unreliable uplinks."""

__version__: str


def __getattr__(name: str) -> str:
    # Reading the metadata takes a tenth of a second on a small machine, and few callers need it;
    # once read it is kept as an attribute, and this function is not called again.
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - likewise

        return str(globals().setdefault(name, version("edgehub")))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
