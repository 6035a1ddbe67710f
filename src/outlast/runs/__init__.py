"""The run folder: the only thing that passes from training to everything after it.

::

    run/
      run.json                 what was run: task, model, methods, seeds, settings, versions
      metrics.jsonl            one line for each seed and block: losses, probes, events
      checkpoint.safetensors   weights, optimiser and method states; enough to resume
      checkpoints/             weights kept along the way (--keep-checkpoints), a file for each step
      results.json             accuracy by length, once tested
      results-before.json      a larger test of the same weights, if a smaller one replaced it

    study/
      study.json               the question, the arms and the claims
      ARM/                     the run folder of each arm

A grid is a folder with run folders in it. Every file is readable by hand and written atomically.
Nothing in a folder is ever executed. A checkpoint names its run and has checksums; a foreign or
damaged one is refused.

=============== ==================================================================
`spec.py`       what decides a run: `RunSpec` and its `Settings`
`folder.py`     file names, atomic writes, the lock
`reading.py`    JSON that is checked: damage is named by file and field
`records.py`    run, metrics and results as types, one reader and one writer for each
`study.py`      the same for a study
`checkpoint.py` tensors and plain state in one safetensors file
`kept.py`       weights kept along the way, one file for each step
`grids.py`      which runs a folder holds, and which were created together
`status.py`     what a run has come to: finished, tested, diverged; what its test covers
=============== ==================================================================
"""
