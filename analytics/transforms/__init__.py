"""Pure functions from DataFrame to DataFrame, one question a file.

They read and write nothing, start no job, and name every column that they use. `lines` is always
the frame of `analytics.readers`: judged, without copies.
"""
