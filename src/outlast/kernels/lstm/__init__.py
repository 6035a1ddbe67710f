"""The recurrence of an LSTM over a whole sequence, with a seed axis of its own, and its layer."""

from outlast.kernels.lstm.layer import lstm_layer
from outlast.kernels.lstm.op import lstm

__all__ = ["lstm", "lstm_layer"]
