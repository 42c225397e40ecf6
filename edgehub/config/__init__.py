"""The configuration: settings, manifest and identities, read, checked, compared, described."""
