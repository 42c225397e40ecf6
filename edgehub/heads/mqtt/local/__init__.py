"""The local topic space: local clients, and parts of the hub, talk to each other by topics."""
