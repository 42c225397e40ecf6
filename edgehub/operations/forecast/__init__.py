"""What queues take in and when they will be empty, from what is measured."""
