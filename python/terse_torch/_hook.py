# SPDX-License-Identifier: Apache-2.0
"""Means of DistributedDataParallel's buckets by terse's messages."""

import concurrent.futures
import contextlib
import math

import torch

from . import _native
from ._compile import Compiled
from ._optimizer import group_of


# One thread for all hooks of a process: it makes means in the order of the backward pass, which is that of all ranks.
_worker = concurrent.futures.ThreadPoolExecutor(1)


class _Mean:
    """An optimizer that moves parameters from 0 by the mean of gradients, at a learning rate of 1: the mean is what they have moved, with
    the other sign. With its own error feedback."""

    def __init__(self, method, settings, group, deadline, shapes, compare_every):
        layout = _native.Layout()
        for number, shape in enumerate(shapes):
            layout.add(str(number), list(shape), compress=len(shape) > 1)
        self.native = _native.make(method, {"lr": 1.0, **settings}, group, math.ceil(1000 * deadline), layout, 0, False, math.inf,
                                   16 << 20, compare_every)
        self.ranks = group.size()
        self.moved, self.gradients = torch.zeros(layout.size), torch.zeros(layout.size)
        self.places = [slice(at, at + math.prod(shape)) for at, shape in zip(layout.offsets, shapes)]

    @torch.no_grad()
    def __call__(self, flat):
        self.moved.zero_()
        begin = 0
        for place in self.places:
            count = place.stop - place.start
            self.gradients[place].copy_(flat[begin:begin + count])
            begin += count
        result = self.native.step(self.moved.data_ptr(), self.gradients.data_ptr(), 1.0, 1.0)
        if self.ranks > 1 and result.bytes_sent == 0:
            raise ValueError("terse_torch: this recipe sends nothing in a step, and a hook makes a mean of each: local steps are optimizers, not hooks")
        begin = 0
        for place in self.places:
            count = place.stop - place.start
            flat[begin:begin + count].copy_(self.moved[place]).neg_()
            begin += count
        return flat


def hook(compressor="sign", process_group=None, rank=2, deadline=60.0):
    """For `ddp_model.register_comm_hook(None, terse_torch.hook("sign"))`: gradients' means travel compressed, with error feedback.

    compressor     "sign": one bit an element and a scale for each tensor; "low_rank": matrices as products of `rank` (1, 2 or 4), as
                   PowerSGD's; or what terse_torch.compile makes of a recipe that steps by the mean of its messages, such as
                   compile("terse::ErrorFeedbackSgd<terse::Uniform<4>>{}")
    process_group  DDP's; needs Gloo for the host

    Only the gradient's mean becomes another: an Adam behind it has the variance of what arrives, so that 1-bit Adam is not this hook with
    Adam, but terse_torch.OneBitAdam without DDP. Vectors travel in full precision. For models that are not sharded."""
    if isinstance(compressor, Compiled):
        if compressor.arena != "cpu":
            raise ValueError("terse_torch: a hook's means are made on the host: compile the recipe for the CPU")
        method, settings, compare_every = compressor.method, {}, 100  # whether its steps are means is the user's word
    elif compressor == "sign":
        method, settings = "ErrorFeedbackSgd", {"momentum": 0.0, "weight_decay": 0.0}
        compare_every = 0
    elif compressor == "low_rank":
        if rank not in (1, 2, 4):
            raise ValueError(f"terse_torch: hook('low_rank') has ranks 1, 2 and 4, not {rank}")
        method, settings = f"PowerSgd of rank {rank}", {"momentum": 0.0, "weight_decay": 0.0}
        compare_every = 0
    else:
        raise ValueError(f"terse_torch: compressor is 'sign', 'low_rank' or a result of compile(), not {compressor!r}")
    group = group_of(process_group)
    means = {}

    def terse_hook(_, bucket):
        # Known by its parameters: after the first step buckets are laid out anew, perhaps as many of the same sizes in another order.
        parameters, flat = bucket.parameters(), bucket.buffer()
        key = tuple(parameter.data_ptr() for parameter in parameters)
        future = torch.futures.Future(devices=[flat.device]) if flat.is_cuda else torch.futures.Future()
        stream = torch.cuda.current_stream(flat.device) if flat.is_cuda else None  # which fills the bucket

        def work():
            try:
                if flat.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                    raise ValueError(f"terse_torch: gradients of {flat.dtype}: a hook's means are in float32")
                if key not in means:
                    for old in [one for one in means if not set(one).isdisjoint(key)]:
                        del means[old]
                    means[key] = _Mean(method, settings, group, deadline, [parameter.shape for parameter in parameters],
                                       compare_every)
                with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                    future.set_result(means[key](flat))
            except Exception as failure:  # pylint: disable=broad-except
                future.set_exception(failure)
        _worker.submit(work)
        return future
    return terse_hook
