"""The page of `outlast view`: runs compared, and one sequence token by token."""
