"""Twins of devices and modules: their documents, versions and limits, and their table."""
