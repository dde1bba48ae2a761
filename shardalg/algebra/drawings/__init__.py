"""Drawings of halos, exchanges and shardings, from their closed forms alone."""
