"""Shardy's completion: its view of the graph, its stages, its order and its step."""
