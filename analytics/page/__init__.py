"""The report page: one HTML file with its pictures inside, readable without a network.

Owns everything a person sees. `figures` takes bounded sums from the tables, the rest is text.
"""
