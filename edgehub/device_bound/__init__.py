"""Messages to devices and modules: stored here until the client has acknowledged them."""
