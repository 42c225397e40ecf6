"""The report page: one HTML file with its pictures inside, readable without a network.

Owns everything that is shown. `figures` takes bounded sums from the tables, the rest is text.
"""
