"""Simulated LoRaWAN stations and devices, over the protocol of real ones."""
