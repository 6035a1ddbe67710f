"""`outlast doctor`."""

from __future__ import annotations


def main() -> None:
    """Say what is installed, which devices there are, and which kernels would be used.

    Example: outlast doctor
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch
    from rich.table import Table

    from outlast.cli.common import console
    from outlast.kernels import libraries
    from outlast.kernels.dispatch import has_triton
    from outlast.machine import cores
    from outlast.version import __version__

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("outlast", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    others = (*libraries.PACKAGES.values(), "transformers", "lightning", "ray")
    for name in ("torch", "numpy", "safetensors", "triton", *others):
        try:
            table.add_row(name, version(name))
        except PackageNotFoundError:
            table.add_row(name, "not installed")
    table.add_row("cpu", f"{cores()} cores to use, torch has {torch.get_num_threads()} threads")
    cuda = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if cuda else 0):
        card = torch.cuda.get_device_properties(index)
        table.add_row(f"cuda:{index}", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    if not cuda:
        table.add_row("cuda", "no device: everything runs on the CPU")
    fused = cuda and has_triton()
    plain = "operations of torch, one by one"
    table.add_row("lstm", _lstm() if fused else "a time loop")
    if cuda:
        table.add_row("lstm of one seed", _lstm_alone())
    sdpa = "torch's scaled_dot_product_attention"
    table.add_row(
        "attention", f"{sdpa}; short sequences in one program (Triton)" if fused else sdpa
    )
    blocks = "blocks of queries in plain torch"
    table.add_row("tra", "fused (Triton)" if fused else blocks)
    for row, package in (("forget", "fla"), ("entmax", "adasplash")):
        usable = cuda and libraries.installed(package)
        fast = f"{package} in 16 bit, under no_grad or by {libraries.SWITCH}=on; else {blocks}"
        table.add_row(row, fast if usable else blocks)
    table.add_row("norm, gelu, losses, AdamW", "fused for all seeds (Triton)" if fused else plain)
    table.add_row("a training step", "captured as a CUDA graph" if cuda else plain)
    console.print(table)


def _lstm() -> str:
    """Which form of the fused kernel serves which widths."""
    from outlast.kernels.lstm import resident, streamed

    return (
        f"fused over time (Triton): weights on chip up to width {resident.MOST_UNITS}, read at "
        f"every step up to {streamed.MOST_UNITS} or with precision=fp32; beyond, a time loop"
    )


def _lstm_alone() -> str:
    """When cuDNN is used instead."""
    from outlast.kernels.lstm import layer

    return (
        f"cuDNN up to width {layer.WIDEST}, and where it would be a time loop "
        f"({layer.SWITCH}=auto | fused | cudnn)"
    )
