"""Ingress: bytes in, messages out; each head speaks one protocol."""
