"""What shows off: complaints about XLA's partitioner as small functions, and `shardalg explore`.

>>> import shardalg as sa
>>> sa.examples.COMPLAINTS["rows shuffled"].issue
'jax-ml/jax#20381'
"""

from shardalg.examples import complaints
from shardalg.examples.complaints import COMPLAINTS

__all__ = ["COMPLAINTS", "complaints"]
