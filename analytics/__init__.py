"""The nightly report: a Spark job over the journals that hubs export.

Owns what is asked of a day: what expired and why, what starved, whether the counts close. It never
imports `edgehub`; the contract between the two is docs/reference/journal-format.md, and nothing
else.
"""
