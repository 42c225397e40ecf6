"""Egress: batches of rows out, one result per row back."""
