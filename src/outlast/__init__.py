"""Outlast: sequence models that keep working far past the lengths they were trained on."""

__version__ = "0.1.0"
