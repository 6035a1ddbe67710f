"""`outlast bench llama`: TRA in a Llama of `transformers` beside the same Llama with SDPA."""
