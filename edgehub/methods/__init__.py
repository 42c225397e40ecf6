"""Direct methods: calls that a connected device or module answers."""
