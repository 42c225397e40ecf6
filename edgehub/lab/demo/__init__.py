"""The demonstration: real hubs, simulated devices, a thin link, and a verdict."""
