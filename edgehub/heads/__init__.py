"""Ingress: bytes in, messages out; one head for each protocol."""
