"""Meshes, digits, offsets and shardings; their closed forms and their notations."""
