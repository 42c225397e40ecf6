"""Spends a link on what matters first: from queues to one endpoint, best priority first."""
