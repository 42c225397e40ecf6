"""Entities and mapper at work in a hub: what the pure ones ask for is carried out here."""
