"""Operations with a truth and fast paths, each a torch op that batches over seeds by itself.

Models are plain single-seed modules; training stacks many seeds with `torch.func.vmap`. The ops
here carry their own vmap rule, so a stack of seeds becomes one larger call instead of a loop.
"""
