"""The assembly of a hub: its parts, one module each, and the one that starts and stops them."""
