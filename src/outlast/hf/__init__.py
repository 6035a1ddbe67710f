"""Outlast in Hugging Face `transformers`: ``pip install 'outlast[hf]'``."""
