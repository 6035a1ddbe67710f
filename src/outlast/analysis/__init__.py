"""Why a model works or fails: what its parts see, compute and pass on.

Every analysis is a function of a model and a task that returns a tidy table: a list of flat rows.
It leaves the model as it was.
"""
