"""Benchmarks that print their own truth: `outlast bench NAME`.

Each benchmark is a folder whose `sections.py` ends with a `Benchmark`, and `registry.py` lists
them. A new benchmark is a folder and a line there. `timing.py` measures, for all of them.
"""
