"""Delayed attention in your own training loop, on any `nn.Module`, in two lines::

    delayed = outlast.delay(model, switch="below(0.05)")                # before the loop
    ...
    delayed.step(loss)                                                  # after each optimiser step

=================  ==================================================================
`handle.py`        `delay` and the handle that it returns
`arguments.py`     what the arguments may be
`selection.py`     which sublayers a pattern, a type or a function chooses
`discovery.py`     which modules are attention, if nothing is chosen
`probing.py`       a small forward pass of the model
`flow.py`          where attention joins the residual stream: the gate belongs there
`sublayer.py`      one sublayer whose forward call is gated
`skipping.py`      the output of a sublayer that is not run
`gradients.py`     the optimiser does not move what is held back
`distributed.py`   ranks decide together; DistributedDataParallel waits for nothing
`marks.py`         a model saved while attention is held back says so
=================  ==================================================================
"""

from outlast.methods.delay.handle import Delay, delay
from outlast.methods.delay.marks import held_back

__all__ = ["Delay", "delay", "held_back"]
