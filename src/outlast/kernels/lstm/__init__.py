"""The recurrence of an LSTM over a whole sequence, with a seed axis of its own."""

from outlast.kernels.lstm.op import lstm

__all__ = ["lstm"]
