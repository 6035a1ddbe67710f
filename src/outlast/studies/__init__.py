"""Studies: a question, its arms, its seeds and what is expected. One file a paper."""

from outlast.runs.study import Claim
from outlast.studies.base import Analysis, Arm, Screen, Study

__all__ = ["Analysis", "Arm", "Claim", "Screen", "Study"]
