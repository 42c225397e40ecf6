"""What a power cut leaves: a shim that records, a disk that forgets, workloads to try it on."""
