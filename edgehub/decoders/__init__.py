"""Payload decoders of LoRaWAN devices: scripts in JavaScript, in a process of their own."""
