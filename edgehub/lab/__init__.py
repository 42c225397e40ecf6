"""Trials of a hub on this machine: the demonstration, the self-test and the simulation."""
