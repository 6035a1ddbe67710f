"""`outlast bench long`: tests of long sequences, in chunks."""
