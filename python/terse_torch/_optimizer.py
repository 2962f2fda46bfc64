# SPDX-License-Identifier: Apache-2.0
"""What all methods have in common as a torch.optim.Optimizer."""

import contextlib
import math
import pathlib
import tempfile
import weakref

import torch
import torch.distributed

from . import _members, _native


def group_of(process_group):
    if process_group is not None:
        return process_group
    if not torch.distributed.is_initialized():
        raise ValueError("terse_torch: ranks are those of torch.distributed: call torch.distributed.init_process_group('gloo') first, "
                         "in a program that torchrun has started")
    return torch.distributed.distributed_c10d._get_default_group()  # pylint: disable=protected-access


def check_transport(process_group=None):
    """Checks a process group against the laws of terse's transports, for some seconds. Collective. Returns whether all hold, and a text."""
    return _native.check_transport(group_of(process_group))


def _groups(params):
    """Groups of parameters as dicts, and the names of those that train."""
    if isinstance(params, torch.nn.Module):
        raise ValueError("terse_torch: takes parameters, model.named_parameters(), and not the model")
    params = list(params.items()) if isinstance(params, dict) and "params" not in params else list(params)
    if not params:
        raise ValueError("terse_torch: there are no parameters to train")
    groups = [dict(group) for group in params] if isinstance(params[0], dict) else [{"params": params}]
    names = []
    for number, group in enumerate(groups):
        if "params" not in group:
            raise ValueError(f"terse_torch: group {number} has no 'params', but {', '.join(map(repr, group))}")
        # 'initial_lr' is what schedulers add, to groups of an optimizer before.
        if unknown := group.keys() - {"params", "lr", "weight_decay", "compress", "hidden", "initial_lr"}:
            raise ValueError(f"terse_torch: group {number} has {', '.join(map(repr, sorted(unknown)))}, but groups have 'lr', 'weight_decay', 'compress' "
                             "and 'hidden' of their own; all else is one for all of them")
        given = group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        pairs = [one if isinstance(one, tuple) else (f"{number}.{index}", one) for index, one in enumerate(given)]
        pairs = [(name, parameter) for name, parameter in pairs if parameter.requires_grad]
        group["params"] = [parameter for _, parameter in pairs]
        names += [(number, name) for name, _ in pairs]
    plain = [name for _, name in names]
    # Groups of two modules may have the same names in each.
    return groups, plain if len(set(plain)) == len(plain) else [f"{number}.{name}" for number, name in names]


class _Segment:
    """A parameter and its place in the arenas."""

    def __init__(self, name, parameter, value, gradient):
        self.name, self.parameter, self.value, self.gradient = name, parameter, value, gradient
        # Others have their master here, and copies travel.
        self.lies_here = parameter.device == value.device and parameter.dtype == torch.float32
        self.version = None
        value.copy_(parameter.detach())
        if self.lies_here:
            parameter.data = value
            if parameter.grad is not None:
                gradient.copy_(parameter.grad)
            parameter.grad = gradient
        self.written()

    def written(self):
        """The master has new values."""
        if not self.lies_here:
            self.parameter.copy_(self.value)
            self.version = self.parameter._version  # pylint: disable=protected-access

    def read(self):
        """Finds what others have done to the parameter."""
        if not self.parameter.requires_grad:
            raise ValueError(f"terse_torch: parameter '{self.name}' was frozen after the optimizer was made: make it again")
        if self.lies_here:
            if self.parameter.data_ptr() != self.value.data_ptr() and self.value.numel():
                raise ValueError(f"terse_torch: parameter '{self.name}' was moved after the optimizer was made: move the model before, "
                                 "or make the optimizer again")
        elif self.parameter._version != self.version:  # pylint: disable=protected-access
            # What is only what the master rounds to, as from a checkpoint, takes no bits from it.
            if not torch.equal(self.parameter, self.value.to(self.parameter)):
                self.value.copy_(self.parameter)
            self.version = self.parameter._version  # pylint: disable=protected-access

    def take(self):
        """Brings the gradient into the arena."""
        given = self.parameter.grad
        if given is None:
            self.gradient.zero_()
        elif given.is_sparse:
            raise ValueError(f"terse_torch: the gradient of parameter '{self.name}' is sparse: terse takes dense ones, Embedding(sparse=False)")
        elif given.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(given)

    def clear(self, set_to_none):
        parameter = self.parameter
        if set_to_none or not self.lies_here:
            parameter.grad = None
        elif parameter.grad is None or parameter.grad.data_ptr() != self.gradient.data_ptr():
            parameter.grad = self.gradient


def _refuse(names, parameters):
    """What can't lie in an arena of float32."""
    ends = []
    for name, parameter in zip(names, parameters):
        reason = None
        if parameter.layout != torch.strided:
            reason = "is sparse, but terse takes dense ones"
        elif parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            reason = f"holds {parameter.dtype}, but terse steps in float32 and takes float32, bfloat16 and float16"
        elif parameter.device.type == "meta":
            reason = "lies on the meta device and has no values: model.to_empty(device='cpu') and initialize it first"
        elif not parameter.is_contiguous():
            reason = "is not contiguous: give the model parameter.contiguous()"
        elif not parameter.is_leaf:
            reason = "is no leaf of the graph, so it never gets a gradient"
        elif type(parameter.data) is not torch.Tensor and hasattr(parameter, "placements"):  # pylint: disable=unidiomatic-typecheck
            reason = "is a DTensor, as FSDP's and tensor parallelism's are: each rank has a part of it alone, and terse means over whole ones"
        if reason:
            raise ValueError(f"terse_torch: parameter '{name}' {reason}")
        if parameter.numel() and parameter.device.type == "cpu":
            begin = parameter.data_ptr()
            ends.append((begin, begin + parameter.numel() * parameter.element_size(), name))
    ends.sort()
    for (_, end, name), (begin, _, other) in zip(ends, ends[1:]):
        if begin < end:
            raise ValueError(f"terse_torch: parameters '{name}' and '{other}' share memory without being one tensor: register one tensor "
                             "twice, or give one of them a copy")


class Optimizer(torch.optim.Optimizer):
    """Base of the methods. All ranks make it alike, and call it alike.

    params         parameters, pairs of name and parameter (`named_parameters()`, so that errors name them), or groups as dicts with
                   `params` and, beside `lr` and `weight_decay`, `compress` (whether messages are compressed: matrices are, vectors
                   aren't) and `hidden` (a matrix between input and output, for Muon and Dion). Those that don't require a gradient
                   are left out
    process_group  whose ranks they are; needs Gloo for the host: "gloo" or "cpu:gloo,cuda:nccl"
    joins          takes parameters and state from the ranks that carry_over, in place of rank 0's parameters: for a rank that has joined a
                   running job, see Members
    deadline       seconds after which a rank that waits for another gives up
    max_norm       clips the norm of the mean gradient; in compressed steps sqrt(mean over ranks of ||g||^2)
    skip_non_finite   skips a step, on all ranks, in which a gradient of any is not finite, where it would raise a RuntimeError
    slice_bytes    messages travel in slices of about so many bytes of gradient
    compare_every  steps after which ranks compare their parameters, 0: never
    most_masked    the largest share of compressed elements that OneBitAdam, OneBitLamb and ZeroOneAdam may mask as they freeze, since their gradients
                   were 0 until then, as those of ReLUs that are dead and of words that never came: they never train. Where there are more,
                   steps raise a ValueError and stay in full precision. 1: any
    seed           of what is drawn at random, alike on all ranks
    arena          where arenas lie: "cuda" for what terse_torch.compile has compiled for that

    Parameters become rank 0's. Those of float32 where arenas lie become views of one, as do their gradients, and nothing is copied in
    a step. bfloat16 and float16, and other devices, have a master in float32 there: gradients are copied to it, values back."""

    def __init__(self, params, method, settings, *, lr, weight_decay=0.0, process_group=None, joins=False, deadline=60.0, seed=0, max_norm=None,
                 skip_non_finite=False, slice_bytes=16 << 20, compare_every=0, most_masked=0.01, arena="cpu", saved_as=None):
        groups, names = _groups(params)
        defaults = {"lr": float(lr), "weight_decay": float(weight_decay), "compress": None, "hidden": False}
        super().__init__(groups, defaults)
        members = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        _refuse(names, [parameter for _, parameter in members])

        if arena == "cuda" and not (members and members[0][1].is_cuda):
            raise ValueError(f"terse_torch: this optimizer was compiled for CUDA, and parameter '{names[0]}' lies on the CPU: move the model first")
        where = members[0][1].device if arena == "cuda" else torch.device("cpu")
        self._rate, self._decay = self._bases()
        self._scales = [self._scales_of(group) for group in self.param_groups]
        layout = _native.Layout()
        for name, (group, parameter) in zip(names, members):
            rate, decay = self._scales_of(group)
            compress = parameter.dim() > 1 if group["compress"] is None else group["compress"]
            layout.add(name, list(parameter.shape), rate, decay, compress, group["hidden"])
        first, scales = {"lr": self._rate, "weight_decay": self._decay, **settings}, list(self._scales)

        def over(group):
            """The method over a process group, with the settings and scales that it had at first."""
            return scales, _native.make(
                method, first, group, math.ceil(1000 * min(deadline, 1e9)), layout, seed, skip_non_finite,
                math.inf if max_norm is None else max_norm, slice_bytes, compare_every, most_masked,
                torch.cuda.current_stream(where).cuda_stream if where.type == "cuda" else 0)
        self._over, self._group = over, group_of(process_group)
        _, self._native = over(self._group)
        self._method = saved_as or method
        self._values, self._gradients = torch.zeros(layout.size, device=where), torch.zeros(layout.size, device=where)
        with torch.no_grad():
            self._segments = [
                _Segment(name, parameter, self._values[at:at + parameter.numel()].view(parameter.shape),
                         self._gradients[at:at + parameter.numel()].view(parameter.shape))
                for name, (_, parameter), at in zip(names, members, layout.offsets)]
            if joins:
                self._native.join(self._values.data_ptr())
                self._written()
            else:
                self._on_host(self._native.broadcast)
        self._overlap = None  # of a step that is open: the gradient scale, and which gradients have left
        self._travels = False  # whether a backward pass inside of overlap() is under way
        self._told = set()  # segments whose gradients are final in it
        self._hooks = []
        self.result = None
        """Of the last step: `applied`, `compressed`, `bytes_sent`."""

    @torch.no_grad()
    def step(self, closure=None, gradient_scale=1.0):  # pylint: disable=arguments-differ
        """Steps on the mean of all ranks' gradients, each times `gradient_scale` (1 / backward passes of it)."""
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            raise ValueError("terse_torch: a GradScaler looks at this rank's gradient alone, and ranks would skip other steps: use bfloat16, "
                             "which needs none, or step(gradient_scale=1 / scale) with skip_non_finite")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = gradient_scale
        if self._overlap is not None:
            scale, gradients = self._overlap
            if gradient_scale not in (1.0, scale):
                raise ValueError("terse_torch: gradient_scale is overlap()'s, since gradients have left with it")
            if gradients != self._versions():
                raise ValueError("terse_torch: gradients were changed between overlap() and step(), and have left before: clip by max_norm=, "
                                 "or leave overlap() out")
        self._check_group()
        self._read()
        for segment in self._segments:
            segment.take()
        self.result = self._native.step(self._values.data_ptr(), self._gradients.data_ptr(), self._rates(), scale)
        self._overlap = None
        _members.stepped.add(self._group)
        self._written()
        return loss

    @torch.no_grad()
    def carry_over(self, process_group):
        """Goes on over a process group of the ranks that are left, after a PeerError, or of more, of which others have joined: see Members. Each
        rank keeps its parameters, momenta and errors; parameters after a meeting, outer momenta and the number of steps become those of the
        rank with the most steps. Messages in flight (StreamingDiLoCo) are dropped. Collective. After a PeerError nothing else has changed:
        regroup, and try again. Raises a ValueError for methods whose state can't do without a lost rank's, such as PowerSgd: those load files."""
        before, scales = self._native, self._scales
        self._overlap, self._travels = None, False
        group = group_of(process_group)
        self._scales, self._native = self._over(group)
        try:
            self._rescale(scales)
            self._native.carry_over(before, self._values.data_ptr())
        except Exception:
            self._native, self._scales = before, scales
            raise
        self._group = group
        self._written()

    def _check_group(self):
        if self._group in _members.replaced:
            raise ValueError("terse_torch: Members has made another process group since: call carry_over(members.group) before the next step")

    # GradScaler calls `step` with its scale then, and step says why not.
    _step_supports_amp_scaling = True

    @contextlib.contextmanager
    def overlap(self, gradient_scale=1.0):
        """Lets gradients travel while the one backward pass inside of it computes others; `step` follows."""
        self._install()
        self._check_group()
        with torch.no_grad():
            self._read()
        self._native.begin(self._values.data_ptr(), self._gradients.data_ptr(), self._rates(), gradient_scale)
        self._told.clear()
        self._travels = True
        try:
            yield
        finally:
            self._travels = False
            self._overlap = gradient_scale, self._versions()

    def zero_grad(self, set_to_none=False):
        self._gradients.zero_()
        for segment in self._segments:
            segment.clear(set_to_none)

    @contextlib.contextmanager
    def mean_parameters(self):
        """Gives parameters the mean over ranks, inside of it: the model to evaluate of methods whose ranks differ between meetings (DiLoCo,
        SparseLoCo, ZeroOneAdam, DecentLaM). Collective."""
        with torch.no_grad():
            self._read()
            own = self._values.clone()
            self._on_host(self._native.mean_of)
        try:
            yield
        finally:
            with torch.no_grad():
                self._values.copy_(own)
                self._written()

    def mean(self, value):
        """The mean over ranks of a number, such as a loss. Collective."""
        return self._native.mean(float(value))

    @property
    def full_precision(self):
        """Whether the next step is exact."""
        return self._native.full_precision

    @property
    def steps(self):
        """Steps taken; those that were skipped don't count."""
        return self._native.steps

    @torch.no_grad()
    def state_dict(self):
        """This rank's: errors and, between meetings, parameters are its own, so that each rank keeps a file of its own. With parameters,
        in float32. Collective for methods that have messages under way between steps (StreamingDiLoCo)."""
        state = super().state_dict()
        self._read()
        with tempfile.TemporaryDirectory(prefix="terse-") as folder:
            file = pathlib.Path(folder) / "state_dict"
            self._native.save(str(file), self._values.data_ptr())
            saved = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
        # Schedulers may have changed groups since the step that these scales are of.
        return {**state, "state": {}, "terse": {"method": self._method, "scales": list(self._scales), "checkpoint": saved}}

    @torch.no_grad()
    def load_state_dict(self, state_dict):
        """Brings state and parameters, to the bit. Collective: nothing changes on any rank unless each has its own, of one step."""
        groups, scales = [dict(group) for group in self.param_groups], list(self._scales)
        ours, fault = state_dict.get("terse"), None
        if ours is None:
            fault = ValueError("terse_torch: this state_dict is of another optimizer: it has no 'terse'")
        elif ours["method"] != self._method:
            fault = ValueError(f"terse_torch: this state_dict is of {ours['method']}, and the optimizer is {self._method}")
        else:
            try:
                super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
            except ValueError as failure:
                fault = failure
        # Ranks agree before they load, and that is collective.
        if self._native.mean(0.0 if fault is None else 1.0) > 0:
            fault = fault or RuntimeError("terse_torch: another rank can't load its state_dict, and says why; nothing was changed")
        try:
            if fault is not None:
                raise fault
            self._rescale(ours["scales"])
            with tempfile.TemporaryDirectory(prefix="terse-") as folder:
                file = pathlib.Path(folder) / "state_dict"
                file.write_bytes(ours["checkpoint"].cpu().numpy().tobytes())
                self._native.load(str(file), self._values.data_ptr())
        except Exception as failure:
            for group, before in zip(self.param_groups, groups):
                group.update(before)
            self._rescale(scales)
            if failure is fault:
                raise
            raise type(failure)(f"{failure} [each rank loads the state_dict that it saved itself]") from failure
        self._written()

    def add_param_group(self, param_group):
        if hasattr(self, "_segments"):
            raise ValueError("terse_torch: all groups of parameters are given when the optimizer is made, since messages are laid out then")
        super().add_param_group(param_group)

    def _bases(self):
        """The rate and decay that groups have shares of."""
        return max(group["lr"] for group in self.param_groups), max(group["weight_decay"] for group in self.param_groups)

    def _scales_of(self, group):
        return (group["lr"] / self._rate if self._rate else 1.0), (group["weight_decay"] / self._decay if self._decay else 0.0)

    def _rates(self):
        """The learning rate of the next step; segments get their shares of it where those have changed."""
        self._rate = max(group["lr"] for group in self.param_groups)
        scales = []
        for group, old in zip(self.param_groups, self._scales):
            if group["weight_decay"] and not self._decay:
                raise ValueError("terse_torch: an optimizer that was made without weight decay has none later")
            new = self._scales_of(group)
            changed = self._rate and any(abs(one - other) > 1e-6 * other for one, other in zip(new, old))
            scales.append(new if changed else old)
        self._rescale(scales)
        return self._rate

    def _rescale(self, scales):
        """Gives segments their groups' shares of rate and decay."""
        number = 0
        for index, group in enumerate(self.param_groups):
            if tuple(scales[index]) != tuple(self._scales[index]):
                for segment in self._segments[number:number + len(group["params"])]:
                    self._native.rescale(segment.name, *scales[index])
            number += len(group["params"])
        self._scales = [tuple(scale) for scale in scales]

    def _on_host(self, call):
        """What ranks do with values on the host, and nobody steps meanwhile."""
        host = self._values.cpu()  # the arena itself, where that is there
        call(host.data_ptr())
        if host is not self._values:
            self._values.copy_(host)
        self._written()

    def _read(self):
        for segment in self._segments:
            segment.read()

    def _written(self):
        for segment in self._segments:
            segment.written()

    def _versions(self):
        """Of gradients: who changes one in place changes its version."""
        # pylint: disable=protected-access
        grads = [segment.parameter.grad for segment in self._segments]
        return [None if grad is None else (id(grad), grad._version) for grad in grads]

    def __getstate__(self):
        raise TypeError("terse_torch: an optimizer is tied to its process group and to its model's parameters, and can't be copied or pickled: "
                        "state_dict() is what can be kept")

    def _install(self):
        """Hooks of autograd's, once: each says that a gradient is final."""
        if self._hooks:
            return
        here = weakref.ref(self)  # hooks of autograd's are no reason to live on
        for number, segment in enumerate(self._segments):
            with torch.enable_grad():
                node = segment.parameter.expand_as(segment.parameter).grad_fn.next_functions[0][0]

            def final(*_, number=number, segment=segment):
                optimizer = here()
                if optimizer is not None and optimizer._travels:  # pylint: disable=protected-access
                    optimizer._final(number, segment)  # pylint: disable=protected-access
            self._hooks.append((node, node.register_hook(final)))

    def _final(self, number, segment):
        if number in self._told:
            raise ValueError("terse_torch: one backward pass is inside of overlap(), and this is another: let all but the last one go before it")
        self._told.add(number)
        with torch.no_grad():
            segment.take()
        self._native.ready(number)
