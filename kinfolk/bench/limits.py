"""Limits of this machine: instruction sets, speed of matrix products, and bandwidth of reading memory."""

from kinfolk.core import machine

INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
"""Instruction sets that decide which kernels run, as Linux names them."""
READ = 256 << 20
"""Bytes that are read to measure the bandwidth: more than any cache holds."""


def processor() -> str:
    """Return the processor's name and the vector instructions that PyTorch uses on it, which a variable may lower."""
    import torch

    return f"{machine.processor()} {torch.backends.cpu.get_cpu_capability()}"


def instruction_sets() -> list[str]:
    """Return those of `INSTRUCTIONS` that the processor has; none where the system does not say."""
    flags = set(machine.cpu_field("flags").split())
    return [name for name in INSTRUCTIONS if name in flags]


def gemm() -> float:
    """Return the operations per second of a matrix product in this process, with its threads."""
    import torch

    from kinfolk.train.peak import gemm_flops

    return gemm_flops(torch.device("cpu"), seconds=0.5)


def bandwidth() -> float:
    """Return the bytes per second that this process reads from memory, with its threads."""
    import torch

    from kinfolk.train.peak import best_time

    x = torch.ones(READ // 4)
    return READ / best_time(x.sum, torch.device("cpu"), seconds=0.5)
