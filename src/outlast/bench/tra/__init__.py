"""`outlast bench tra`: Threshold Relative Attention beside other attention."""
