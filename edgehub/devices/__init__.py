"""Who may speak: identities of devices and modules, and their rights."""
