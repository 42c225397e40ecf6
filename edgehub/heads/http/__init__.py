"""The HTTP head: messages by POST in the REST form of Azure IoT Hub."""
