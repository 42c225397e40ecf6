"""The broker head: messages of an existing MQTT broker, and topics that hub and broker share."""
