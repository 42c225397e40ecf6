"""The MQTT listener: the IoT Hub dialect for devices and modules."""
