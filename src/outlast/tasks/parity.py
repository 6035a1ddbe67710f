"""Parity: is the number of ones odd? The smallest state-tracking task there is.

The modular sum of `modsum` with modulus 2 (m = 2 is among the moduli of arXiv 2602.18333, On the
"Induction Bias" in Sequence Models), under the name it goes by. It is also the task on which
DeltaNet with negative eigenvalues (2411.12537) holds to 6.4 times the trained length.

Length n is the number of bits; tensors are (batch, n + 1). Token ids: bits 0 and 1, ``=``,
padding. The parity is due at ``=`` (part `state`) and, with aligned supervision, at each bit
(part `running`, not counted in a test). A guess is right half the time. Examples::

    parity
    tokens  1 0 1 1 =
    labels  1 1 0 1 1

    parity(supervision=outcome)
    tokens  1 0 1 1 =
    labels  . . . . 1
"""

from __future__ import annotations

from outlast.registry import tasks
from outlast.tasks.base import Supervision
from outlast.tasks.modsum import ModSum


@tasks.register("parity")
class Parity(ModSum):
    """Parity of a string of bits, asked at the end or all along.

    Args:
        supervision: `aligned` asks for the parity so far at each bit; `outcome` at the end alone.
        length: The longest length trained on, in bits.
    """

    def __init__(self, supervision: Supervision = "aligned", length: int = 25) -> None:
        super().__init__(modulus=2, supervision=supervision, length=length)
