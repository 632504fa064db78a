"""Whether kernels in CUDA C++ can be used in this process, and if not, why. Knows no kernel."""

import functools

import torch

from kernels.cuda import driver, nvrtc

_CAPABILITY = (9, 0)  # code for sm_90a runs nowhere else
_EMPTY = 'extern "C" __global__ void empty() {}'


def why_not() -> str:
    """Empty where such kernels can be used on the current device, else a clause that says why they cannot."""
    if not torch.version.cuda:
        return "this build of torch is without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return _why_not(torch.cuda.current_device())


@functools.cache
def _why_not(device: int) -> str:
    capability = torch.cuda.get_device_capability(device)
    if capability != _CAPABILITY:
        return "the device has compute capability {}.{}, not 9.0".format(*capability)
    try:
        driver.library()
        nvrtc.compiler().build(
            _EMPTY, "empty.cu", "sm_90a"
        )  # an old one, or one without its built-ins, cannot
    except (OSError, AttributeError) as error:
        return f"the CUDA driver's library cannot be used: {error}"
    except nvrtc.CudaCompileError as error:
        return " ".join(str(error).split())
    return ""
