"""Paths from one layout of a tensor to another: closed forms, then search."""
