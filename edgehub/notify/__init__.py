"""Notifications to the service manager."""
