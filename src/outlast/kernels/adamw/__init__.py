"""AdamW over a table of seeds in two passes; `train/optimiser.py` is the truth it is held to."""
