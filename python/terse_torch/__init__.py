# SPDX-License-Identifier: Apache-2.0
"""Communication-efficient distributed optimizers for PyTorch, over torch.distributed.

    torch.distributed.init_process_group("gloo")
    optimizer = terse_torch.OneBitAdam(model.named_parameters(), lr=1e-3, freeze_step=1000)    # instead of DDP and Adam
    optimizer.zero_grad(); loss.backward(); optimizer.step()

or, beside an optimizer of PyTorch's, `ddp_model.register_comm_hook(None, terse_torch.hook("sign"))`.
"""

import torch  # noqa: F401  before the extension, whose libraries are PyTorch's

from ._compile import compile  # pylint: disable=redefined-builtin
from ._hook import hook
from ._members import Members
from ._native import MismatchError, PeerError
from ._optimizer import Optimizer, check_transport
from .methods import (Adam, DecentLaM, DiLoCo, Dion, ErrorFeedbackSgd, Lamb, Muon, OneBitAdam, OneBitLamb, PowerSgd, SparseLoCo,
                      StreamingDiLoCo, ZeroOneAdam)

__all__ = ["Adam", "DecentLaM", "DiLoCo", "Dion", "ErrorFeedbackSgd", "Lamb", "Members", "Muon", "OneBitAdam", "OneBitLamb", "Optimizer",
           "MismatchError", "PeerError", "PowerSgd", "SparseLoCo", "StreamingDiLoCo", "ZeroOneAdam", "check_transport", "compile", "hook"]
