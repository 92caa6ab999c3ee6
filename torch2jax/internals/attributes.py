"""Private attributes of objects of PyTorch, JAX and transformers: their owners, and what each must be.

They are looked up where they are wanted. Nothing imports this but the tests.
"""

ATTRIBUTES = {
    "torch.Tensor": {
        "_backward_hooks": "The hooks on a tensor's gradient, by handles; None without.",
        "_base": "The tensor that a view is of, None where it is none.",
        "_grad_fn": "What ``grad_fn`` is, for its setter and deleter.",
        "_indices": "A method: the indices of a COO tensor, as they are.",
        "_is_param": "Set on tensors of classes of code's own that are parameters.",
        "_is_view": "A method: whether autograd takes a tensor for a view.",
        "_is_zerotensor": "A method: whether a tensor stands for zeros without memory.",
        "_post_accumulate_grad_hooks": "The hooks for after a gradient has been added, by handles; None without.",
        "_version": "How often a tensor's memory has been written to.",
    },
    "torch.nested._internal.nested_tensor.NestedTensor": {
        "_lengths": "The lengths of rows with gaps between them, None without gaps.",
        "_maybe_max_seqlen": "The length of the longest row, None where nobody has said it.",
        "_metadata_cache": "The lengths of the shortest and the longest row, where they are known.",
        "_offsets": "Where rows begin, and the last one ends; also an inner tensor's name.",
        "_ragged_idx": "Which dimension is ragged.",
        "_values": "The elements of all rows; also an inner tensor's name.",
    },
    "torch.UntypedStorage": {
        "_cdata": "A number for the memory, the same for all objects on it.",
        "_weak_ref": "A method: a number for the memory that does not keep it.",
    },
    "torch.TypedStorage": {
        "_untyped_storage": "The storage of bytes below it.",
    },
    "torch._ops.OpOverload": {
        "_can_decompose": "A method: whether PyTorch has what an operator is made of.",
        "_handle": "The operator in C++; its ``redispatch_boxed`` runs the kernel for a set of keys.",
        "_op": "What runs an operator without asking anything of Python.",
        "_overloadname": "The last part of ``aten.add.Tensor``, ``default`` without a name.",
        "_schema": "The signature: ``name``, ``arguments`` and ``returns``, and what is written to.",
    },
    "torch._ops.OpOverloadPacket": {
        "_qualified_op_name": "The name as ``aten::add``.",
    },
    "torch.nn.Module": {
        "_buffers": "A module's own buffers by name.",
        "_call_impl": "A method: hooks around ``forward``.",
        "_compiled_call_impl": "What runs in its place once ``compile()`` has been called, else None.",
        "_load_from_state_dict": "A method: loads a module's own tensors.",
        "_modules": "Its parts by name.",
        "_parameters": "Its own parameters by name.",
        "_version": "The version that its state is saved with.",
    },
    "torch.nn.SyncBatchNorm": {
        "_check_input_dim": "A method: refuses an input of fewer than two dimensions.",
    },
    "torch.distributions.Distribution": {
        "_validate_args": "Whether arguments are checked, for all distributions.",
    },
    "torch.amp.GradScaler": {
        "_device": "The type of device that it scales for.",
        "_lazy_init_scale_growth_tracker": "A method: makes the tensors of the scale, on a device.",
        "_scale": "The tensor of the scale, None before it is needed.",
    },
    "torch.optim.Optimizer": {
        "_wrapped_by_lr_sched": "Set on a ``step`` that a scheduler counts.",
    },
    "torch.autograd.graph.Node": {
        "_sequence_nr": "A method: a number that grows with each operation.",
    },
    "torch.autograd.Function": {
        "_materialize_non_diff_grads": "Of a context: whether gradients of what has none are given as zeros.",
    },
    "torch.jit.ScriptModule": {
        "_c": "The module in C++.",
    },
    "torch._C.ScriptObject": {
        "_type": "A method: its type of TorchScript's.",
    },
    "jax.core.Tracer": {
        "_trace": "Where it was made.",
    },
    "jax._src.linear_util.Store": {
        "_val": "What is in it.",
    },
    "jax._src.export.shape_poly._DimExpr": {
        "_evaluate": "A method: the size where the symbols are these numbers.",
        "_get_vars": "A method: the names of its symbols.",
    },
    "jax.export.SymbolicScope": {
        "_explicit_constraints": "What is said of its sizes: each has a ``diff`` that is zero, or not below.",
    },
    "transformers.GenerationMixin": {
        "_optimize_model_for_decode": "A method: a context around the loop over tokens.",
        "_prefill": "A method: runs the model on the prompt.",
        "_previous_max_cache_length": "How long the caches are that it has made; they become no shorter.",
        "_supports_default_dynamic_cache": "A method: whether its cache is one of those that `generate` makes.",
        "_update_model_kwargs_for_generation": "A method: what the model takes after one more token.",
    },
    "transformers.GenerationConfig": {
        "_pad_token_tensor": "What follows the end of a sequence, within `generate`.",
    },
}
