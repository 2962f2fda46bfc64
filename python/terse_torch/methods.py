# SPDX-License-Identifier: Apache-2.0
"""The methods that are compiled with the package. Others: terse_torch.compile. What `**options` may be is said by Optimizer."""

from ._optimizer import Optimizer


def _adam(betas, eps):
    return {"beta1": betas[0], "beta2": betas[1], "eps": eps}


class Adam(Optimizer):
    """AdamW on the exact mean of gradients: the baseline."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **options):
        super().__init__(params, "Adam", _adam(betas, eps), lr=lr, weight_decay=weight_decay, **options)


class Lamb(Optimizer):
    """LAMB on the exact mean of gradients."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **options):
        super().__init__(params, "Lamb", _adam(betas, eps), lr=lr, weight_decay=weight_decay, **options)


class OneBitAdam(Optimizer):
    """1-bit Adam: `freeze_step` steps of Adam, and then one bit for each element of the momentum, with error feedback.

    topology: "scatter_gather" or "ring". Tang et al., ICML 2021."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, freeze_step=1000, bias_correction=False,
                 topology="scatter_gather", **options):
        names = {"scatter_gather": "OneBitAdam", "ring": "OneBitAdam over ring"}
        if topology not in names:
            raise ValueError(f"terse_torch: topology is {' or '.join(map(repr, names))}, not {topology!r}; others: terse_torch.compile")
        super().__init__(params, names[topology], {**_adam(betas, eps), "freeze_step": freeze_step, "bias_correction": bias_correction},
                         lr=lr, weight_decay=weight_decay, **options)


class OneBitLamb(Optimizer):
    """1-bit LAMB: `freeze_step` steps of LAMB, and then one bit for each element. Li et al., HiPC 2022."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, freeze_step=1000, bias_correction=False, **options):
        super().__init__(params, "OneBitLamb", {**_adam(betas, eps), "freeze_step": freeze_step, "bias_correction": bias_correction},
                         lr=lr, weight_decay=weight_decay, **options)


class ZeroOneAdam(Optimizer):
    """0/1 Adam: the variance is frozen more and more often, until `freeze_step`; then ranks step alone between meetings of one bit
    an element, at first in each step, and half as often after each `local_interval_steps`, at most `most_local_steps` apart. Lu et al., ICLR 2023."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, freeze_step=1000, variance_updates=16,
                 local_interval_steps=1000, most_local_steps=16, **options):
        super().__init__(params, "ZeroOneAdam",
                         {**_adam(betas, eps), "freeze_step": freeze_step, "variance_updates": variance_updates,
                          "local_interval_steps": local_interval_steps, "most_local_steps": most_local_steps},
                         lr=lr, weight_decay=weight_decay, **options)


class ErrorFeedbackSgd(Optimizer):
    """SGD with momentum on each rank, whose messages are one bit an element and a scale for each tensor, with error feedback.
    Zheng et al., NeurIPS 2019."""

    def __init__(self, params, lr=1e-2, momentum=0.9, weight_decay=0.0, **options):
        super().__init__(params, "ErrorFeedbackSgd", {"momentum": momentum}, lr=lr, weight_decay=weight_decay, **options)


class PowerSgd(Optimizer):
    """PowerSGD: matrices travel as products of rank 1, 2 or 4, with error feedback. Vogels et al., NeurIPS 2019."""

    def __init__(self, params, lr=1e-2, momentum=0.9, weight_decay=0.0, rank=2, **options):
        if rank not in (1, 2, 4):
            raise ValueError(f"terse_torch: PowerSgd has ranks 1, 2 and 4, not {rank}; others: terse_torch.compile(\"terse::PowerSgd<{rank}>{{}}\")")
        super().__init__(params, f"PowerSgd of rank {rank}", {"momentum": momentum}, lr=lr, weight_decay=weight_decay, **options)


class DiLoCo(Optimizer):
    """DiLoCo: `period` steps of Adam on each rank alone, then an outer step of Nesterov's momentum along how far ranks have moved in the
    mean. Douillard et al., 2023."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, period=100, outer_lr=0.7, outer_momentum=0.9, **options):
        super().__init__(params, "DiLoCo", {**_adam(betas, eps), "period": period, "outer_lr": outer_lr, "outer_momentum": outer_momentum},
                         lr=lr, weight_decay=weight_decay, **options)


class StreamingDiLoCo(Optimizer):
    """DiLoCo a fragment at a time, of `fragments`, which travels for `delay` steps while ranks go on. Douillard et al., 2025."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, period=100, outer_lr=0.7, outer_momentum=0.9,
                 fragments=4, delay=1, local_share=0.5, **options):
        super().__init__(params, "StreamingDiLoCo",
                         {**_adam(betas, eps), "period": period, "outer_lr": outer_lr, "outer_momentum": outer_momentum,
                          "fragments": fragments, "delay": delay, "local_share": local_share},
                         lr=lr, weight_decay=weight_decay, **options)


class SparseLoCo(Optimizer):
    """DiLoCo whose messages are the largest 64 elements of each tile of 64 x 64, with error feedback. Sarfi et al., 2025."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, period=30, outer_lr=1.0, decay=0.95, **options):
        super().__init__(params, "SparseLoCo", {**_adam(betas, eps), "period": period, "outer_lr": outer_lr, "decay": decay},
                         lr=lr, weight_decay=weight_decay, **options)


class Muon(Optimizer):
    """Muon on the mean of gradients, along matrices in groups with hidden=True, and Adam along all others."""

    def __init__(self, params, lr=1e-3, momentum=0.95, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **options):
        super().__init__(params, "Muon", {**_adam(betas, eps), "momentum": momentum}, lr=lr, weight_decay=weight_decay, **options)


class Dion(Optimizer):
    """Dion of rank 16: orthonormal steps along matrices in groups with hidden=True, whose factors alone travel, and Adam along all others.
    Ahn et al., 2025."""

    def __init__(self, params, lr=1e-2, momentum=0.95, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **options):
        super().__init__(params, "Dion", {**_adam(betas, eps), "momentum": momentum}, lr=lr, weight_decay=weight_decay, **options)


class DecentLaM(Optimizer):
    """Decentralized momentum SGD without its bias: each rank mixes with its neighbours on the symmetric exponential graph alone. Yuan et al., ICCV 2021."""

    def __init__(self, params, lr=1e-2, momentum=0.9, weight_decay=0.0, **options):
        super().__init__(params, "DecentLaM", {"momentum": momentum}, lr=lr, weight_decay=weight_decay, **options)
