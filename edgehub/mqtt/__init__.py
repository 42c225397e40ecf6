"""MQTT 3.1.1 and 5: packets, decoders of both roles, topics, property bag, batches; the client."""
