"""LoRaWAN without I/O: frames, cryptography, MAC commands, regional parameters."""
