"""Evaluation: accuracy by length, by part and jointly, and statistics over seeds."""

from outlast.evaluate.ladder import LADDER, evaluate

__all__ = ["LADDER", "evaluate"]
