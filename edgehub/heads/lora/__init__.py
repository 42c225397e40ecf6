"""LoRaWAN stations: Basics Station's LNS protocol, joins, data and answers."""
