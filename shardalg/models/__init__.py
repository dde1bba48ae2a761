"""Plain JAX functions with their strategies.

>>> import shardalg as sa
>>> model = sa.models.DenseTransformer(
...     layers=2, model_dim=64, hidden_dim=256, heads=4, head_dim=16, vocab=128, seq=32, batch=16
... )
>>> model.plan({"X": 2, "Y": 4}, "finalized").mesh
Mesh(X=2, Y=4)
"""

from shardalg.models.dense import DenseTransformer

__all__ = ["DenseTransformer"]
