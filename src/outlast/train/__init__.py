"""Training: the loop, seeds as an axis, checkpoints and resume."""
