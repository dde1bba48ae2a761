"""Modules of nodes: the user's scopes, else the path of the weights that a node reads or updates.

`module_paths` splits an argument's path into words. `weights` decides which arguments are weights,
and names their modules. `gradients` finds the values that become a weight's gradient. `of_nodes`
gives every node its module. No jax here.
"""
