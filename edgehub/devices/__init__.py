"""Who may speak: identities and their rights; devices that several hubs hear."""
