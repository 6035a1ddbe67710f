"""What the integrations with other trainers share. It needs no extra."""
