"""`outlast doctor`."""

from __future__ import annotations


def main() -> None:
    """Say what is installed, which devices there are, and which kernels would be used.

    Example: outlast doctor
    """
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    import torch
    from rich.table import Table

    from outlast import __version__
    from outlast.cli.common import console

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("outlast", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    for name in ("torch", "numpy", "safetensors", "triton", "transformers", "lightning", "ray"):
        try:
            table.add_row(name, version(name))
        except PackageNotFoundError:
            table.add_row(name, "not installed")
    table.add_row("cpu", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}")
    cuda = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if cuda else 0):
        card = torch.cuda.get_device_properties(index)
        table.add_row(f"cuda:{index}", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    if not cuda:
        table.add_row("cuda", "no device: everything runs on the CPU")
    fused = cuda and find_spec("triton") is not None
    plain = "operations of torch, one by one"
    table.add_row("lstm", "fused over time (Triton) up to width 256" if fused else "a time loop")
    sdpa = "torch's scaled_dot_product_attention"
    table.add_row(
        "attention", f"{sdpa}; short sequences in one program (Triton)" if fused else sdpa
    )
    table.add_row("tra", "fused (Triton)" if fused else "blocks of queries in plain torch")
    table.add_row("norm, gelu, losses, AdamW", "fused for all seeds (Triton)" if fused else plain)
    table.add_row("a training step", "captured as a CUDA graph" if cuda else plain)
    console.print(table)
