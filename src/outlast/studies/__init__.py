"""Studies: a question, its arms, its seeds and what is expected. One file a paper."""

from outlast.runs.records import Claim
from outlast.studies.base import Arm, Study

__all__ = ["Arm", "Claim", "Study"]
