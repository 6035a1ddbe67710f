"""`outlast doctor`."""

from __future__ import annotations

#: what sweeps on a cluster and trackers use; `mlflow` brings `mlflow-skinny` with it
MORE = ("ray", "tensorboard", "wandb", "mlflow-skinny", "trackio")


def main() -> None:
    """Say what is installed, which devices there are, and which kernels would be used.

    Example: outlast doctor
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from outlast.cli.tables import Column, show_table
    from outlast.kernels import libraries
    from outlast.kernels.dispatch import has_triton
    from outlast.machine import cores
    from outlast.version import __version__

    rows: list[tuple[str, str]] = []

    def add(name: str, text: str) -> None:
        rows.append((name, text))

    add("outlast", __version__)
    add("python", f"{platform.python_version()} on {_system()}")
    others = (*libraries.PACKAGES.values(), "transformers", "lightning", "datasets", *MORE)
    for name in ("torch", "numpy", "safetensors", "triton", *others):
        try:
            add(name, version(name))
        except PackageNotFoundError:
            add(name, "not installed")
    threads = torch.get_num_threads()
    words = f"torch has {threads} thread{'s' * (threads != 1)}"
    add("cpu", f"{cores()} core{'s' * (cores() != 1)} to use, {words}")
    cuda = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if cuda else 0):
        card = torch.cuda.get_device_properties(index)
        add(f"cuda:{index}", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    if not cuda:
        add("cuda", "no device: everything runs on the CPU")
    fused = cuda and has_triton()
    plain = "operations of torch, one by one"
    add("lstm", _lstm() if fused else "a time loop")
    if cuda:
        add("lstm of one seed", _lstm_alone())
    sdpa = "torch's scaled_dot_product_attention"
    add("attention", f"{sdpa}; short sequences in one program (Triton)" if fused else sdpa)
    blocks = "blocks of queries in plain torch"
    add("tra", "fused (Triton)" if fused else blocks)
    for row, package in (("forget", "fla"), ("entmax", "adasplash")):
        usable = cuda and libraries.installed(package)
        fast = f"{package} in 16 bit, under no_grad or by {libraries.SWITCH}=on; else {blocks}"
        add(row, fast if usable else blocks)
    add("norm, gelu, losses, AdamW", "fused for all seeds (Triton)" if fused else plain)
    add("a training step", "captured as a CUDA graph" if cuda else plain)
    show_table([Column(""), Column("")], rows, header=False)


def _system() -> str:
    """The system in words that a narrow terminal can show."""
    import platform

    return f"{platform.system()} {platform.release()}, {platform.machine()}"


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
