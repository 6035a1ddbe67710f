"""`outlast bench seeds`: many seeds trained at once beside one at a time."""
