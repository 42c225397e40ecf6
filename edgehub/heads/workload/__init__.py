"""The workload API of Azure IoT Edge: what a module asks of the machine before it signs in."""
