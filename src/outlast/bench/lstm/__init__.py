"""`outlast bench lstm`: the fused LSTM beside torch's."""
