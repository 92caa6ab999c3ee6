"""A small program for each patch of the package: code that uses PyTorch as users do, and comes by what stands in there.

PyTorch's own callers are gone through wherever there are any: a target that is still there, and that nobody calls any
more, is what a new release may leave of a patch.
"""

import contextlib
import copy
import importlib
import io
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint

from torch2jax.tracing.traces import alone

__all__ = ["PROGRAMS"]

PROGRAMS: dict[Callable, tuple[str, ...]] = {}
"""Programs of a traced tensor of three numbers, and the patches that each comes by, as far as the release has them."""


def comes_by(*patches: str) -> Callable[[Callable], Callable]:
    def register(program: Callable) -> Callable:
        PROGRAMS[program] = patches
        return program

    return register


# Derivatives.


@comes_by("torch.autograd.graph.saved_tensors_hooks.__enter__", "torch.autograd.graph.saved_tensors_hooks.__exit__")
def saved_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        x.requires_grad_().square().sum().backward()
    return x.grad


@comes_by("torch.autograd._engine_run_backward")
def backward(x):
    x.requires_grad_().square().sum().backward()
    return x.grad


@comes_by("torch.autograd.graph._engine_run_backward")
def engine(x):
    loss = x.requires_grad_().square().sum()
    return torch.autograd.graph._engine_run_backward((loss,), (torch.ones(()),), False, False, (x,))


@comes_by("torch._C._current_graph_task_id", "torch._C._will_engine_execute_node")
def hooks_of_many_gradients(x):
    x.requires_grad_()
    torch.autograd.graph.register_multi_grad_hook((x,), lambda gradients: None)
    x.square().sum().backward()
    return x.grad


@comes_by("torch.autograd.variable.Variable._execution_engine", "torch.autograd.variable.Variable.__new__")
def variables(x):
    x = torch.autograd.Variable(x, requires_grad=True)
    y = x.square()
    y.register_hook(lambda grad: torch.autograd.Variable._execution_engine.queue_callback(lambda: None))
    y.sum().backward()
    return x.grad


@comes_by(
    "torch.autograd.function.Function.apply",
    "torch.autograd.function.FunctionMeta.__getattribute__",
)
def custom_function(x):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    return Twice.apply(x)


@comes_by("torch._C._functions.UndefinedGrad")
def undefined_gradient(x):
    return torch._C._functions.UndefinedGrad()(x)


@comes_by("torch._C._functions.DelayedError")
def error_of_a_later_derivative(x):
    return torch._C._functions.DelayedError("has no derivative", 1)(x)


@comes_by("torch.utils.hooks.BackwardHook._apply_on_tensors", "torch.utils.hooks.RemovableHandle.__init__")
def hooks_of_modules(x):
    layer = nn.Linear(3, 1)
    layer.register_full_backward_hook(lambda module, grads, before: None)
    layer(x.requires_grad_()).sum().backward()
    return x.grad


@comes_by("torch._functorch.eager_transforms.grad_and_value_impl")
def func_grad(x):
    return torch.func.grad(lambda x: x.square().sum())(x)


@comes_by("torch._functorch.eager_transforms._vjp_with_argnums")
def func_vjp(x):
    return torch.func.vjp(torch.sin, x)[1](x)


@comes_by("torch._functorch.eager_transforms._jvp_with_argnums")
def func_jvp(x):
    return torch.func.jvp(torch.sin, (x,), (x,))


@comes_by("torch._functorch.eager_transforms._chunked_standard_basis_for_")
def func_jacrev(x):
    return torch.func.jacrev(torch.sin)(x)


@comes_by("torch._functorch.eager_transforms.lazy_dynamo_disallow")
def func_linearize(x):
    return torch.func.linearize(torch.sin, x)[1](x)


@comes_by(
    "torch._functorch.eager_transforms._func_increment_nesting",
    "torch._functorch.eager_transforms._func_decrement_nesting",
    "torch._functorch.eager_transforms._wrap_all_tensors_to_functional",
    "torch._functorch.eager_transforms._unwrap_all_tensors_from_functional",
    "torch._functorch.eager_transforms._propagate_functional_input_mutation",
)
def functionalize(x):
    return torch.func.functionalize(torch.sin)(x)


@comes_by("torch._sync")
def sync(x):
    torch._sync(x)
    return x


@comes_by(
    "torch._functorch.predispatch._enter_dual_level",
    "torch._functorch.predispatch._exit_dual_level",
    "torch._functorch.predispatch._make_dual",
    "torch._functorch.predispatch._unpack_dual",
    # Up to 2.12.
    "torch._C._enter_dual_level",
    "torch._C._exit_dual_level",
    "torch._VF._make_dual",
    "torch._VF._unpack_dual",
)
def dual_numbers(x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x).sin()).tangent


@comes_by("torch._functorch.vmap._flat_vmap", "torch._functorch.vmap.lazy_load_decompositions")
def vmap(x):
    return torch.vmap(torch.sin)(x)


@comes_by("torch._functorch.vmap.is_batchedtensor", "torch._functorch.vmap._remove_batch_dim")
def vmap_by_hand(x):
    from torch._functorch import vmap

    def body(x):
        assert vmap.is_batchedtensor(x)
        return x

    return torch.vmap(lambda x: torch.vmap(body)(x))(x.expand(2, 3))


@comes_by("torch.autograd.functional._vmap")
def vectorized_jacobian(x):
    return torch.autograd.functional.jacobian(torch.sin, x, vectorize=True, strategy="forward-mode")


@comes_by("torch._vmap_internals._vmap")
def batched_gradients(x):
    y = x.requires_grad_().sin()
    return torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


@comes_by("torch.autograd.gradcheck._vmap")
def gradcheck(x):
    return importlib.import_module("torch.autograd.gradcheck")._vmap(torch.sin)(x)


@comes_by("torch.utils.checkpoint.checkpoint.__dynamo_disable", "torch.utils.checkpoint._checkpoint_impl")
def checkpoints(x):
    return checkpoint(torch.sin, x, use_reentrant=False)


@comes_by(
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl",
)
def checkpoints_without_reentrance(x):
    return checkpoint(torch.sin, x, use_reentrant=False)


@comes_by("torch.utils.checkpoint.CheckpointFunction")
def reentrant_checkpoints(x):
    return checkpoint(torch.sin, x, use_reentrant=True)


# Control flow.


@comes_by("torch.cond")
def cond(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@comes_by("torch._higher_order_ops.scan.scan")
def scan(x):
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, x: (carry + x, carry * x), torch.zeros(()), x)


@comes_by(
    "torch._higher_order_ops.associative_scan.associative_scan",
    "torch._higher_order_ops.associative_scan.generic_associative_scan",
)
def associative_scan(x):
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(torch.add, x, 0)


@comes_by("torch._higher_order_ops.utils._hop_compile_and_call")
def strict_mode(x):
    from torch._higher_order_ops.strict_mode import strict_mode

    return strict_mode(torch.sin, (x,))


@comes_by("torch.compile")
def compiled(x):
    return torch.compile(torch.sin)(x)


@comes_by(
    "torch._dynamo.eval_frame._callback_from_stance", "torch._dynamo.eval_frame.set_fullgraph_compiled_frame_count"
)
def compiled_before(x):
    return COMPILED(x)


COMPILED = torch.compile(lambda x: x.sin(), backend="eager", fullgraph=True)


@comes_by("torch.export.export")
def export(x):
    class Sine(nn.Module):
        def forward(self, x):
            return x.sin()

    return torch.export.export(Sine(), (x,)).module()(x)


# Libraries of operators.


def _library(name: str):
    operator = torch.library.custom_op(name, lambda x: x.sin(), mutates_args=(), schema="(Tensor x) -> Tensor")
    operator.register_fake(torch.empty_like)
    return operator


@comes_by("torch._C._any_requires_grad", "torch._C._any_output_is_alias_to_input_or_output")
def custom_operators(x):
    operator = _library("patch_programs::sine")
    operator.register_autograd(lambda ctx, grad: grad)
    return operator(x)


@comes_by("torch._C._increment_version")
def versions(x):
    torch.autograd.graph.increment_version(x)
    return x


@comes_by("torch._ops.OpOverload.redispatch")
def redispatched(x):
    operator = _library("patch_programs::redispatched")
    operator.register_autograd(lambda ctx, grad: grad)
    return torch.func.grad(lambda x: operator(x).sum())(x)


@comes_by(
    "torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter",
    "torch._functorch.autograd_function.custom_function_call_vmap_helper",
)
def batched_operators(x):
    operator = _library("patch_programs::batched")
    operator.register_vmap(lambda info, dims, x: (operator(x), dims[0]))
    return torch.vmap(operator)(x)


@comes_by("torch._subclasses.fake_tensor.FakeTensorMode.from_tensor")
def fake_tensors(x):
    assert FakeTensorMode().from_tensor(x).shape == x.shape
    return x


@comes_by("torch.library.opcheck")
def checks_of_operators(x):
    torch.library.opcheck(torch.ops.aten.sin.default, (torch.ones(2),))
    return x


_CHECKS = ("schema", "autograd_registration", "fake", "aot_autograd")


@comes_by(*(f"torch.testing._internal.optests.generate_tests.safe_{name}_check" for name in _CHECKS))
def checks_of_operators_in_tests(x):
    from torch.testing._internal.optests import generate_tests

    for check in generate_tests.ALL_TEST_UTILS.values():
        check(torch.ops.aten.sin.default, (torch.ones(2),), {})
    return x


# Random numbers and distributions.


@comes_by("torch.random._manual_seed_impl", "torch.random.default_generator")
def seeds(x):
    torch.manual_seed(1)
    torch.get_rng_state()
    return torch.rand_like(x)


@comes_by("torch.distributions.studentT.StudentT.variance")
def student_t(x):
    return torch.distributions.StudentT(x.exp(), validate_args=False).variance


@comes_by("torch.distributions.dirichlet.Dirichlet.mode", "torch.distributions.dirichlet._Dirichlet")
def dirichlet(x):
    distribution = torch.distributions.Dirichlet(x.exp(), validate_args=False)
    return distribution.mode, distribution.rsample()


@comes_by("torch.distributions.von_mises._rejection_sample")
def von_mises(x):
    return torch.distributions.VonMises(x, x.exp(), validate_args=False).sample()


# Tensors, memory, files.


@comes_by("torch.Tensor.__reduce_ex__")
def copies(x):
    return x[:2] + copy.copy(ONES)


@comes_by("torch.nn.parameter.Parameter.__reduce_ex__")
def copied_parameters(x):
    return x[:2] + copy.copy(PARAMETER)


ONES = torch.ones(2)
PARAMETER = nn.Parameter(ONES)


@comes_by("torch._utils._rebuild_tensor", "torch.Tensor._typed_storage")
def loaded_files(x):
    FILE.seek(0)
    return x[:2] + torch.load(FILE)


torch.save(torch.ones(2), FILE := io.BytesIO())


@comes_by("torch.utils.swap_tensors")
def swapped(x):
    torch.utils.swap_tensors(torch.ones(2, device="meta"), torch.ones(3, device="meta"))
    return x


@comes_by("torch.utils.dlpack.from_dlpack")
def capsules(x):
    return torch.from_dlpack(x)


@comes_by("torch.to_dlpack")
def capsules_of_torch(x):
    return x + torch.from_dlpack(torch.to_dlpack(ONES)).sum()


@comes_by("torch.utils.dlpack.to_dlpack")
def capsules_of_utils(x):
    return x + torch.from_dlpack(torch.utils.dlpack.to_dlpack(ONES)).sum()


@comes_by("torch._C._to_dlpack", "torch._C._to_dlpack_versioned")
def capsules_of_c(x):
    for capsule in (torch._C._to_dlpack, torch._C._to_dlpack_versioned):
        x = x + torch.from_dlpack(capsule(ONES)).sum()
    return x


@comes_by("torch.frombuffer", "torch.from_numpy")
def memory_of_others(x):
    import numpy

    return x + torch.from_numpy(numpy.ones(3, "f4")) + torch.frombuffer(bytearray(12), dtype=torch.float32)


@comes_by("torch.Tensor.as_subclass", "torch.Tensor._make_subclass", "torch.Tensor.__new__")
def classes(x):
    class Image(torch.Tensor):
        pass

    Image(torch.ones(2))
    return torch.Tensor.as_subclass(x, Image) + torch.Tensor._make_subclass(Image, x)


@comes_by("torch.nn.parameter.UninitializedParameter.__new__", "torch.nn.parameter.UninitializedBuffer.__new__")
def lazy_modules(x):
    for make in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
        with contextlib.suppress(RuntimeError):
            make()
    return x


# Modules.


@comes_by(
    "torch.nn.modules.module.Module.__init__",
    "torch.nn.modules.module.Module.__setattr__",
    "torch.nn.modules.module.Module._wrapped_call_impl",
)
def modules(x):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.scale

    return Scale()(x)


_MODULE = "torch.nn.modules.module.Module."
_CHANGES = ("__delattr__", "__setstate__", "_apply", "add_module", "register_buffer", "register_module")
_HOOKS = [name for name in vars(nn.Module) if name.startswith(("register_", "_register_")) and name.endswith("_hook")]


@comes_by(*[_MODULE + name for name in (*_CHANGES, "register_parameter")])
def changed_modules(x):
    module = copy.deepcopy(nn.Module()).to(x.device)
    module.register_buffer("one", x)
    module.register_parameter("two", nn.Parameter(x))
    module.add_module("three", nn.Identity())
    module.register_module("four", nn.Identity())
    del module.one
    return module.two * len(list(module.children()))


@comes_by(
    "torch.nn.modules.container.ModuleDict.__delitem__",
    "torch.nn.modules.container.ModuleDict.clear",
    "torch.nn.modules.container.ModuleList.insert",
    "torch.nn.modules.container.Sequential.insert",
)
def changed_containers(x):
    parts = nn.ModuleDict({"a": nn.Identity(), "b": nn.Identity()})
    del parts["a"]
    parts.clear()
    layers = nn.Sequential()
    layers.insert(0, nn.Tanh())
    nn.ModuleList().insert(0, nn.Tanh())
    return layers(x)


@comes_by("torch.utils.hooks.RemovableHandle.remove", *[_MODULE + name for name in _HOOKS])
def hooks_on_modules(x):
    for name in _HOOKS:
        handle = getattr(nn.Identity(), name)(lambda *_: None)
        if handle is not None:
            handle.remove()
    return x


@comes_by("torch.nn.parallel.data_parallel.DataParallel.forward")
def data_parallel(x):
    return nn.DataParallel(nn.Identity())(x)


@comes_by(
    "torch.nn.parallel.distributed.DistributedDataParallel.__init__",
    "torch.nn.parallel.distributed.DistributedDataParallel.forward",
    "torch.nn.parallel.distributed.DistributedDataParallel.register_comm_hook",
)
def distributed_data_parallel(x):
    wrapper = nn.parallel.DistributedDataParallel(nn.utils.skip_init(nn.PReLU))
    with contextlib.suppress(NotImplementedError):
        wrapper.register_comm_hook(None, print)
    nn.init.ones_(wrapper.module.weight)
    return wrapper(x)


@comes_by("torch.nn.modules.batchnorm.float")
def batch_norm(x):
    norm = nn.BatchNorm1d(3, momentum=None)
    norm(x.expand(2, 3))
    return norm.running_mean


@comes_by(
    "torch.nn.modules.transformer.TransformerEncoder.forward", "torch.nn.modules.transformer._detect_is_causal_mask"
)
def transformer(x):
    layer = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    return nn.TransformerEncoder(layer, 1).eval()(x.reshape(1, 3, 1).expand(1, 3, 4))


@comes_by(
    "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
    "torch.nn.attention.flex_attention._validate_device",
    "torch.nn.attention.flex_attention._create_empty_block_mask",
    "torch.nn.attention.flex_attention._apply_kernel_options",
    "torch.nn.attention.flex_attention.setup_compilation_env",
)
def flex_attention(x):
    from torch.nn.attention import flex_attention

    query = x.reshape(1, 1, 3, 1).expand(1, 1, 3, 16)
    with flex_attention.setup_compilation_env():
        return flex_attention.flex_attention(query, query, query)


@comes_by("torch.nn.utils.parametrize._cache")
def parametrizations(x):
    from torch.nn.utils import parametrizations, parametrize

    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    with parametrize.cached():
        return layer(x) + layer(x)


@comes_by(
    "torch.ao.quantization.observer.UniformQuantizationObserverBase._calculate_qparams",
    "torch.ao.quantization.observer.MovingAverageMinMaxObserver.forward",
    "torch.ao.quantization.fake_quantize.FakeQuantize.forward",
)
def fake_quantization(x):
    return torch.ao.quantization.FakeQuantize()(torch.ao.quantization.MovingAverageMinMaxObserver()(x))


# TorchScript.


class _Sine(nn.Module):
    def forward(self, x):
        return x.sin()


def _sine(x: torch.Tensor):
    return torch.sin(x)


SCRIPTED = torch.jit.script(_Sine().eval())
SCRIPTED_FUNCTION = torch.jit.script(_sine)


@comes_by("torch.jit.torch.jit.ScriptFunction.__call__")
def scripted_functions(x):
    return SCRIPTED_FUNCTION(x)


@comes_by("torch.ScriptMethod.__call__")
def scripted_modules(x):
    return SCRIPTED(x)


@comes_by("torch.jit._script.RecursiveScriptModule.__deepcopy__")
def copies_of_scripted_modules(x):
    return copy.deepcopy(SCRIPTED)(x)


@comes_by("torch.jit.script")
def scripted_within(x):
    return torch.jit.script(_Sine())(x)


@comes_by("torch.serialization.save")
def saved_tensors(x):
    with contextlib.suppress(RuntimeError):
        torch.save(x, io.BytesIO())
    return x


@comes_by("torch.jit.save")
def saved_scripts(x):
    with contextlib.suppress(NotImplementedError):
        torch.jit.save(SCRIPTED, io.BytesIO())
    return x


@comes_by("torch.jit.trace")
def traced_functions(x):
    return torch.jit.trace(torch.sin, (x,))(x)


@comes_by("torch.jit.trace_module")
def traced_modules(x):
    return torch.jit.trace_module(_Sine(), {"forward": (x,)})(x)


@comes_by("torch.jit.freeze")
def frozen(x):
    return torch.jit.freeze(SCRIPTED)(x)


@comes_by("torch.jit.optimize_for_inference")
def optimized(x):
    return torch.jit.optimize_for_inference(SCRIPTED)(x)


# Training.


def _trained(kind: Callable, **options):
    weight = nn.Parameter(torch.ones(3, 3))
    weight.grad = torch.ones(3, 3)
    optimizer = kind([weight], **options)
    optimizer.step()
    return optimizer


@comes_by(
    "torch.optim.optimizer.Optimizer._patch_step_function",
    "torch.optim.optimizer._global_optimizer_pre_hooks",
    "torch.compiler.is_compiling",
    "torch.is_tensor",
    "torch.optim.adam.Tensor",
)
def optimizers(x):
    return x + _trained(torch.optim.Adam, foreach=True).param_groups[0]["params"][0]


@comes_by("torch.optim.sgd.Tensor")
def plain_descent(x):
    return x + _trained(torch.optim.SGD).param_groups[0]["params"][0]


@comes_by("torch.optim.adagrad.Tensor")
def adagrad(x):
    return x + _trained(torch.optim.Adagrad).param_groups[0]["params"][0]


@comes_by("torch.optim.radam.radam")
def rectified_adam(x):
    return x + _trained(torch.optim.RAdam).param_groups[0]["params"][0]


@comes_by("torch.optim._adafactor.max", "torch.optim._adafactor.min")
def adafactor(x):
    return x + _trained(torch.optim.Adafactor).param_groups[0]["params"][0]


@comes_by("torch.optim.asgd.max", "torch.optim.asgd.min", "torch.optim.asgd.asgd")
def averaged_descent(x):
    importlib.import_module("torch.optim.asgd").min(1, 2)  # which its own code does not call
    return x + _trained(torch.optim.ASGD, foreach=False).param_groups[0]["params"][0]


@comes_by("torch.optim._functional.math")
def sparse_steps(x):
    weight = nn.Parameter(torch.ones(3, 2))
    nn.functional.embedding(torch.tensor([1, 1]), weight, sparse=True).sum().backward()
    torch.optim.SparseAdam([weight]).step()
    return x + weight[:, 0]


def _scheduled(make: Callable, *loss_or_epoch) -> None:
    scheduler = make(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for _ in range(3):
            scheduler.step(*loss_or_epoch)


@comes_by("torch.optim.lr_scheduler.LRScheduler.step", "torch.optim.lr_scheduler.min")
def linear_schedules(x):
    _scheduled(lr_scheduler.LinearLR, 2)
    return x


@comes_by("torch.optim.lr_scheduler.MultiStepLR.get_lr")
def schedules_with_milestones(x):
    _scheduled(lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1]))
    return x


@comes_by("torch.optim.lr_scheduler.math")
def cosine_schedules(x):
    _scheduled(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 3))
    return x


@comes_by("torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.step")
def warm_restarts(x):
    _scheduled(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3))
    return x


@comes_by(
    "torch.optim.lr_scheduler.ReduceLROnPlateau.step",
    "torch.optim.lr_scheduler.float",
    "torch.optim.lr_scheduler.max",
)
def plateaus(x):
    _scheduled(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), 1.0)
    return x


@comes_by("torch.optim.lr_scheduler.SequentialLR.step")
def schedules_in_turn(x):
    def make(optimizer):
        parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.SequentialLR(optimizer, parts, [2])

    _scheduled(make)
    return x


@comes_by("torch.optim.lr_scheduler.ChainedScheduler.step")
def chained_schedules(x):
    _scheduled(lambda optimizer: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer)]))
    return x


@comes_by(
    "torch.optim.swa_utils.AveragedModel.update_parameters",
    "torch.optim.swa_utils.max",
    "torch.optim.swa_utils.min",
    "torch.optim.swa_utils.math",
)
def averaged_models(x):
    layer = nn.Linear(3, 1)
    swa_utils.AveragedModel(layer).update_parameters(layer)
    _scheduled(lambda optimizer: swa_utils.SWALR(optimizer, 0.1))
    return x


@comes_by(
    "torch.amp.grad_scaler.GradScaler.__init__",
    "torch.amp.grad_scaler.GradScaler._lazy_init_scale_growth_tracker",
    "torch.amp.grad_scaler.GradScaler._unscale_grads_",
    "torch.amp.grad_scaler.GradScaler._maybe_opt_step",
    "torch.amp.grad_scaler.GradScaler.update",
    "torch.cuda.amp.common.amp_definitely_not_available",
)
def scalers(x):
    weight = nn.Parameter(torch.ones(3))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], lr=0.1)
    scaler.scale((weight * x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.amp.common.amp_definitely_not_available()
    return weight


@comes_by("torch.amp.grad_scaler.GradScaler.__setstate__")
def copies_of_scalers(x):
    copy.deepcopy(torch.amp.GradScaler("cpu"))
    return x


# The state of the process.


@comes_by(
    "torch.amp.autocast_mode.autocast.__enter__",
    "torch.amp.autocast_mode.autocast.__exit__",
    "torch.autocast_increment_nesting",
    "torch.autocast_decrement_nesting",
    "torch.set_autocast_cache_enabled",
    "torch.set_autocast_dtype",
    "torch.set_autocast_enabled",
)
def autocast(x):
    with torch.autocast("cpu"):
        return x @ x


@comes_by("torch.amp.autocast_mode._cast")
def custom_forward(x):
    class Same(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float16)
        def forward(ctx, x):
            return x * 1

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            return grad

    with torch.autocast("cpu"):
        return Same.apply(x)


_DEVICES = ("cpu", "ipu", "xla")


@comes_by(
    "torch.set_autocast_gpu_dtype",
    *(f"torch.set_autocast_{device}_{kind}" for device in _DEVICES for kind in ("dtype", "enabled")),
)
def switches_of_autocast(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are to go
        torch.set_autocast_gpu_dtype(torch.float16)
        for device in _DEVICES:
            getattr(torch, f"set_autocast_{device}_dtype")(torch.bfloat16)
            getattr(torch, f"set_autocast_{device}_enabled")(False)
    return x


@comes_by("torch.cuda.is_bf16_supported")
def bf16(x):
    return x if torch.cuda.is_bf16_supported() else -x


@comes_by("torch.set_default_dtype", "torch.get_default_dtype")
def default_dtype(x):
    torch.set_default_dtype(torch.get_default_dtype())
    return x


@comes_by("torch._C.get_default_dtype")
def default_dtype_of_c(x):
    torch._C.get_default_dtype()
    return x


@comes_by("torch.set_default_tensor_type")
def default_tensor_type(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is to go
        torch.set_default_tensor_type(torch.FloatTensor)
    return x


@comes_by("torch.autograd.profiler.record_function.__enter__", "torch.autograd.profiler.record_function.__exit__")
def profiled(x):
    with torch.profiler.record_function("sine"):
        return x.sin()


# Process groups. There is no mesh around these programs, which is an error that comes by what stands in.


@comes_by(
    "torch.distributed.distributed_c10d._world",
    "torch.distributed.distributed_c10d._get_default_group",
    "torch.distributed.distributed_c10d._new_group_with_tag",
)
def process_groups(x):
    assert not dist.is_initialized()
    for ask in (dist.get_rank, lambda: dist.new_group([0])):
        with contextlib.suppress(ValueError):
            ask()
    return x


@comes_by(
    "torch.distributed.barrier",
    "torch.distributed.distributed_c10d.barrier",
    "torch.distributed.destroy_process_group",
    "torch.distributed.distributed_c10d.destroy_process_group",
    "torch.distributed.distributed_c10d._resolve_process_group",
)
def ends_of_process_groups(x):
    c10d = dist.distributed_c10d
    for function in (dist.barrier, c10d.barrier, dist.destroy_process_group, c10d.destroy_process_group):
        with contextlib.suppress(ValueError):
            function()
    with contextlib.suppress(ValueError):
        c10d._get_group_size_by_name("nobody")
    return x


@comes_by("torch.distributed.c10d_logger._get_msg_dict")
def errors_of_collectives(x):
    with contextlib.suppress(ValueError):
        dist.all_reduce(x)
    return x


@comes_by("torch.distributed._functional_collectives._maybe_wrap_tensor")
def functional_collectives(x):
    return importlib.import_module("torch.distributed._functional_collectives")._maybe_wrap_tensor(x)


@comes_by("torch.distributed._functional_collectives.permute_tensor")
def permuted(x):
    with contextlib.suppress(ValueError):
        importlib.import_module("torch.distributed._functional_collectives").permute_tensor(x, [0], "nobody")
    return x


_DIFFERENTIABLE = "torch.distributed.nn.functional"


@comes_by(
    *(f"{_DIFFERENTIABLE}.{name}" for name in ("all_reduce", "broadcast", "reduce", "gather", "scatter")),
    *(f"{_DIFFERENTIABLE}.{name}" for name in ("reduce_scatter", "all_gather", "all_to_all", "all_to_all_single")),
)
def differentiable_collectives(x):
    functions = importlib.import_module(_DIFFERENTIABLE)
    for run in (
        lambda: functions.all_reduce(x),
        lambda: functions.broadcast(x, 0),
        lambda: functions.reduce(x, 0),
        lambda: functions.gather(x),
        lambda: functions.scatter([x]),
        lambda: functions.reduce_scatter(x, [x]),
        lambda: functions.all_gather(x),
        lambda: functions.all_to_all([x], [x]),
        lambda: functions.all_to_all_single(x, x),
    ):
        with contextlib.suppress(ValueError):
            run()
    return x


@comes_by("torch.nn.modules.batchnorm.SyncBatchNorm.forward")
def synchronized_norm(x):
    return nn.SyncBatchNorm(3).eval()(x[None, :])


@comes_by(
    "torch.distributed.distributed_c10d.all_gather_object",
    "torch.distributed.distributed_c10d.gather_object",
    "torch.distributed.distributed_c10d.broadcast_object_list",
    "torch.distributed.distributed_c10d.scatter_object_list",
)
def collectives_of_objects(x):
    for run in (
        lambda: dist.all_gather_object([None], 1),
        lambda: dist.gather_object(1, [None], 0),
        lambda: dist.broadcast_object_list([1], 0),
        lambda: dist.scatter_object_list([None], [1], 0),
    ):
        with contextlib.suppress(ValueError):
            run()
    return x


_MESHES = "torch.distributed.device_mesh"


@comes_by(
    f"{_MESHES}.init_device_mesh",
    *(f"{_MESHES}.DeviceMesh.{name}" for name in ("__getitem__", "get_group", "get_all_groups")),
    *(f"{_MESHES}.DeviceMesh.{name}" for name in ("get_coordinate", "get_local_rank")),
)
def device_meshes(x):
    with alone(()):
        mesh = importlib.import_module(_MESHES).init_device_mesh("cpu", (1,), mesh_dim_names=("devices",))
        groups = mesh["devices"].get_group(), *mesh.get_all_groups()
        return x + mesh.get_local_rank() + mesh.get_coordinate()[0] + len(groups)


_FSDP = "torch.distributed.fsdp"


@comes_by(
    f"{_FSDP}.fully_shard",
    f"{_FSDP}._fully_shard._fully_shard.FSDPModule._get_fsdp_state",
    *(f"{_FSDP}._fully_shard._fsdp_state.FSDPState.{name}" for name in ("_pre_forward", "_post_forward")),
    *(f"{_FSDP}.fully_sharded_data_parallel.FullyShardedDataParallel.{name}" for name in ("__init__", "forward")),
)
def fully_sharded(x):
    fsdp = importlib.import_module(_FSDP)
    wrapper = object.__new__(fsdp.FullyShardedDataParallel)
    for run in (
        lambda: fsdp.FullyShardedDataParallel(nn.Identity()),
        lambda: fsdp.FullyShardedDataParallel.forward(wrapper, x),
    ):
        with contextlib.suppress(NotImplementedError):
            run()
    module = fsdp.fully_shard(nn.Identity())
    fsdp.register_fsdp_forward_method(module, "extra_repr")
    return module(x) + len(module.extra_repr())


_TENSORS = "torch.distributed.tensor"


@comes_by(
    f"{_TENSORS}.distribute_tensor",
    *(f"{_TENSORS}._api.DTensor.{name}" for name in ("from_local", "to_local", "redistribute", "full_tensor")),
)
def distributed_tensors(x):
    tensors = importlib.import_module(_TENSORS)
    with alone(()):
        mesh = importlib.import_module(_MESHES).init_device_mesh("cpu", (1,), mesh_dim_names=("devices",))
        split = tensors.distribute_tensor(x, mesh, [tensors.Replicate()])
        local = split.redistribute(placements=[tensors.Shard(0)]).to_local()
        return tensors.DTensor.from_local(local, mesh, [tensors.Replicate()]).full_tensor()
