"""Recipes: strategies that follow from a function, its roles, shapes and operators."""
