"""Evaluation: accuracy by length, by part and jointly, and statistics over seeds."""
