"""Identities and their rights; devices that several hubs receive."""
