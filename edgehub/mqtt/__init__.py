"""MQTT 3.1.1 and 5: packets and decoders for both roles, topics, property bag, batches; no I/O."""
