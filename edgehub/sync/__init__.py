"""The routing table: rows in a storage that hubs may share, live routes that follow them."""
