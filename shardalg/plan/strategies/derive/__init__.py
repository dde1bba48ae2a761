"""How a recipe becomes a strategy: classes of dimensions, uses of parameters, layouts in steps.

In the order of work: `argument_roles` (roles that nobody gave), `dimension_classes` (dimensions
that one axis shards together), `product_uses` (how products read parameters), `parallel_products`
(which classes tensor parallelism shards), `placing`, `placed_products` and `placed_state` (layouts
of arrays), `deriving` (the steps, sites and results).
"""
