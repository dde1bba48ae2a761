"""Plain JAX functions with their strategies.

>>> import shardalg as sa
>>> model = sa.models.DenseTransformer(
...     layers=2, model_dim=64, hidden_dim=256, heads=4, head_dim=16, vocab=128, seq=32, batch=16
... )
>>> model.plan({"X": 2, "Y": 4}, "finalized").mesh
Mesh(X=2, Y=4)

`Config` has the sizes of the paper's Transformer. `part` returns a part of it that can be planned
alone, such as "ffn", "layer_gradient" or "train_step"; `sa.paper` has the strategies. The paper's
other models, with their layouts in parentheses, are `Pipelined` with a `Schedule` (`TABLE_4`),
`MoEConfig` (`SPARSE`, `HYBRID`), `Conformer` (`PIPELINED`), `UNet3D` (`SPATIAL`) and
`EncoderDecoder` (`FIGURE_2`).
"""

from shardalg.costs.pipelines.schedules import Schedule
from shardalg.costs.pipelines.schedules import compared as schedules
from shardalg.models.dense import DenseTransformer
from shardalg.models.published.conformer import PIPELINED, Conformer
from shardalg.models.published.encoder_decoder import FIGURE_2, EncoderDecoder
from shardalg.models.published.moe import HYBRID, SPARSE, MoEConfig
from shardalg.models.published.pipelined import TABLE_4, Pipelined
from shardalg.models.published.unet3d import SPATIAL, UNet3D
from shardalg.models.training import Part, part
from shardalg.models.transformer import WIDE_64B, Config

__all__ = [
    "FIGURE_2",
    "HYBRID",
    "PIPELINED",
    "SPARSE",
    "SPATIAL",
    "TABLE_4",
    "WIDE_64B",
    "Config",
    "Conformer",
    "DenseTransformer",
    "EncoderDecoder",
    "MoEConfig",
    "Part",
    "Pipelined",
    "Schedule",
    "UNet3D",
    "part",
    "schedules",
]
