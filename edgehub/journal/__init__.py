"""The journal: what became of every row, as lines in files that can be exported."""
