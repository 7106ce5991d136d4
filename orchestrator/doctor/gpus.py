"""A simple model of a GPU: a pass takes as long as the slowest of moving its bytes, computing, and
launching its kernels one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from workers.loading.dry_run import Footprint, Work
from workers.runtime.memory import RESERVED_BYTES

GIB = 2**30
# reached shares of a data sheet's figures
BANDWIDTH_SHARE = 0.7
COMPUTE_SHARE = 0.5
KERNEL_LAUNCH_S = 10e-6  # from Python


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet."""

    name: str
    memory: int  # bytes; 0: unknown
    bandwidth: float  # bytes/s
    compute: float  # 16-bit operations/s

    has_graphs: ClassVar[bool] = True  # whether passes are CUDA graphs
    reserved: ClassVar[int] = RESERVED_BYTES  # of the memory, for each worker

    def seconds(self, work: Work) -> float:
        """Seconds that a pass takes. The GPU moves bytes, computes and launches kernels at the same
        time.
        """
        moving = work.moved / (self.bandwidth * BANDWIDTH_SHARE)
        computing = work.flops / (self.compute * COMPUTE_SHARE)
        return max(moving, computing, work.kernels * KERNEL_LAUNCH_S)

    def seconds_per_image(self, found: Footprint, passes: float, batch: int) -> float:
        """Seconds for each image of a batch, without the decoding of its tokens."""
        return (self.seconds(found.prefill) + passes * self.seconds(found.one_pass)) / batch

    @property
    def assumption(self) -> str:
        """What a plan assumes of its speed."""
        return (
            f"each GPU moves {self.bandwidth / 1e9:.0f} GB/s and computes "
            f"{self.compute / 1e12:.0f} TFLOP/s ({self.name}); {BANDWIDTH_SHARE:.0%} and "
            f"{COMPUTE_SHARE:.0%} of that are reached; launching a kernel takes "
            f"{KERNEL_LAUNCH_S * 1e6:.0f} µs; a pass takes as long as the slowest of the three"
        )


#: From data sheets (dense bfloat16).
GPUS = (
    Gpu("RTX 3090", 24 * GIB, 936e9, 71e12),
    Gpu("A100 40 GB", 40 * GIB, 1555e9, 312e12),
    Gpu("L40S", 48 * GIB, 864e9, 362e12),
    Gpu("A100 80 GB", 80 * GIB, 2039e9, 312e12),
    Gpu("H100", 80 * GIB, 3350e9, 989e12),
    Gpu("H200", 141 * GIB, 4800e9, 989e12),
)


def gpu_of(
    memory: float, bandwidth: float | None = None, compute: float | None = None, device: str = ""
) -> Gpu:
    """A GPU with this memory, as fast as the most similar known one where its speed is not given.

    Args:
        memory: in GiB.
        bandwidth: in GB/s.
        compute: in TFLOP/s.
        device: its name, as torch gives it. Of the known GPUs of that kind, or else of all, the one
            with the nearest memory is the most similar.
    """
    kind = [known for known in GPUS if known.name.removeprefix("RTX ").split()[0] in device]
    like = min(kind or GPUS, key=lambda known: abs(known.memory - memory * GIB))
    gpu = replace(like, name=f"assumed as fast as {like.name}", memory=int(memory * GIB))
    if bandwidth is not None:
        gpu = replace(gpu, bandwidth=bandwidth * 1e9)
    if compute is not None:
        gpu = replace(gpu, compute=compute * 1e12)
    return gpu
