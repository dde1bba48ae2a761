"""Plain JAX functions with their strategies.

>>> import shardalg as sa
>>> model = sa.models.DenseTransformer(
...     layers=2, model_dim=64, hidden_dim=256, heads=4, head_dim=16, vocab=128, seq=32, batch=16
... )
>>> model.plan({"X": 2, "Y": 4}, "finalized").mesh
Mesh(X=2, Y=4)

`Config` has the sizes of the paper's Transformer, and `part` a piece of it to plan by itself, as
"ffn", "layer_gradient" or "train_step"; `sa.paper` has their strategies.
"""

from shardalg.models.dense import DenseTransformer
from shardalg.models.training import Part, part
from shardalg.models.transformer import WIDE_64B, Config

__all__ = ["WIDE_64B", "Config", "DenseTransformer", "Part", "part"]
