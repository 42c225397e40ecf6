"""Entities behind the hub, and what their messages become in the cloud."""
