"""The HTTP API and the live page: what operators and programs see of a hub, and may change.

Imported only where the settings have `[web]` with a port.
"""
