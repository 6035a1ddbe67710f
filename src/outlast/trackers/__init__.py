"""Where curves of runs are shown beside the folders: TensorBoard, W&B, MLflow, trackio.

A tracker is fed from the files of a run folder. The folder stays the truth: whatever a tracker
does, it never stops a run and never changes it. See `tracking.py`.
"""
