"""Answers that are checked by planning again: what removes a collective, what a layout costs."""
