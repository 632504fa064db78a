"""Without a GPU Triton's interpreter is used; it must be chosen before Triton is first imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
