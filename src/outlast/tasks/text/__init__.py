"""Language modelling on real text: `text("folder")`."""

from outlast.tasks.text.task import Text

__all__ = ["Text"]
