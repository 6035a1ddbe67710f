"""Studies: a question, its arms, its seeds and what is expected. One file a paper."""

from outlast.studies.base import Arm, Claim, Study

__all__ = ["Arm", "Claim", "Study"]
