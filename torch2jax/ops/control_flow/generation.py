"""`generate` of transformers where it is traced: the prompt, and one loop of the graph for all further tokens.

The loop of transformers asks after each token whether all sequences have ended. Here one iteration of it is traced, as
the body of `torch.while_loop`. So the model runs about three times while JAX traces, whatever the number of tokens is.
What grows with each token (the tokens, masks and positions) has room for all of them, and a length. The cache has its
full length from the beginning, and everything else in it stays as it is: what does not is an error.

Greedy decoding and sampling are served. What is not says so before the model runs.
"""

import copy
import sys
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from ...control.state import retried
from ...runtime.errors import TracedValueError
from ...runtime.patches import runs_instead_of
from ...runtime.translation import lift, this_call
from ...tensors.objects import codec_of, item_names
from ...tensors.tensor import wrap
from ...tensors.traced import is_traced
from ...tracing.conditions import add_idle_question
from ...tracing.user_code import note_made, of_user
from ...values.masked_functions import padded_to, rows_and_length, with_length
from ...values.traced_numbers import is_unknown
from .loops import while_loop

_MODULE = "transformers.generation.utils"
_MIXIN = _MODULE + ":GenerationMixin"
_WANTED = ("_prefill", "_optimize_model_for_decode")  # which older releases lack: their own loop runs
_STATIC = (None, "static", "hybrid", "hybrid_chunked", "sliding_window")
_REFUSED_OPTIONS = {  # with the value that asks for nothing
    "no_repeat_ngram_size": (0, "which looks tokens up in a dictionary"),
    "encoder_no_repeat_ngram_size": (0, "which looks tokens up in a dictionary"),
    "guidance_scale": (1, "which runs the model with a second cache that grows with each token"),
    "watermarking_config": (None, "which seeds random numbers with each token"),
}
_RECIPE = (
    "Under jit, generate does greedy decoding and sampling, with a cache of a fixed size: "
    "cache_implementation='static', which is the default there. Everything else works with compiled parts: "
    "t2j(model.generate, compile=[''])"
)

# Code that tests a mask to save time, or to warn. These answers give the same tokens as the others.
add_idle_question("transformers/generation/utils.py", "generate", 'model_kwargs["attention_mask"] == 1).all()', False)
add_idle_question("transformers/generation/utils.py", "generate", "has_right_padding", False)
add_idle_question("transformers/generation/utils.py", "generate", "torch.sum(inputs_tensor[:, -1] ==", False)
add_idle_question("transformers/generation/stopping_criteria.py", "__call__", "and not is_done and cur_len >", True)
add_idle_question("transformers/masking_utils.py", "prepare_padding_mask", "(padding_length := kv_length", True)
_BLOOM = "transformers/models/bloom/modeling_bloom.py"
add_idle_question(_BLOOM, "create_masks_for_generate", "(padding_length := target_length", True)


class GenerateError(TracedValueError):
    """`generate` is traced in a way that no loop of the graph can follow."""

    def __init__(self, why: str):
        self.what = "generate"
        Exception.__init__(self, f"generate under jit got {why}. {_RECIPE}")


def _is_traced(*values: Any) -> bool:
    """Returns True if code is traced, or one of some tensors."""
    return this_call().stages or any(map(_is_decided_later, values))


def _is_decided_later(x: Any) -> bool:
    return is_unknown(x) and is_traced(x.read())


@runs_instead_of("transformers.utils.import_utils.is_jax_jitting", with_original=True, may_lack=True)
def is_jax_jitting(original: Callable, x: object) -> bool:
    """Returns True also for values traced here: transformers then does not test a mask to save time."""
    return _is_decided_later(x) or original(x)


@runs_instead_of(_MIXIN + ".generate", with_original=True, may_lack=True)
def generate(
    original: Callable, self: Any, inputs: object = None, generation_config: Any = None, *args: object, **kwargs: object
):
    if not _is_traced(inputs, *kwargs.values()):
        return original(self, inputs, generation_config, *args, **kwargs)
    config = self.generation_config if generation_config is None else generation_config
    given = kwargs.get("cache_implementation", config.cache_implementation)
    if given not in _STATIC:
        raise GenerateError(f"cache_implementation={given!r}, which has another size after each token")
    if kwargs.get("use_cache", config.use_cache) is False:
        raise GenerateError("use_cache=False, with which each token needs a program of its own")
    if kwargs.get("custom_generate") is not None:
        raise GenerateError("custom_generate=, whose loop is not known")
    for name, (neutral, why) in _REFUSED_OPTIONS.items():
        value = kwargs.get(name, getattr(config, name, None))
        if value is not None and value != neutral:
            raise GenerateError(f"{name}={value!r}, {why}")
    if kwargs.get("past_key_values") is None and self._supports_default_dynamic_cache():
        if generation_config is None:
            kwargs["cache_implementation"] = "static"
        else:  # transformers warns of a configuration beside options
            generation_config = copy.deepcopy(generation_config)
            generation_config.cache_implementation = "static"
            kwargs.pop("cache_implementation", None)
    try:
        return original(self, inputs, generation_config, *args, **kwargs)
    except GenerateError:
        raise
    except (TracedValueError, NotImplementedError, RuntimeError, IndexError) as error:
        error.add_note(_RECIPE)
        raise


@runs_instead_of(_MIXIN + "._prepare_static_cache", with_original=True, may_lack=True)
def prepare_static_cache(original: Callable, self: Any, cache_implementation: str, *args: object, **kwargs: object):
    """Layers of sliding windows count their tokens in Python, so full ones take their place: masks are the same."""
    cache = original(self, cache_implementation, *args, **kwargs)
    if not _is_traced():
        return cache
    code = sys.modules["transformers.cache_utils"]
    decoder = getattr(cache, "self_attention_cache", cache)
    full = self._previous_max_cache_length  # that of all layers: it is no less than what was asked for
    decoder.layers = [
        code.StaticLayer(full) if type(layer) is code.StaticSlidingWindowLayer else layer for layer in decoder.layers
    ]
    return cache


@runs_instead_of(_MIXIN + "._get_logits_processor", with_original=True, may_lack=True)
def get_logits_processor(original: Callable, self: object, generation_config: Any, *args: object, **kwargs: object):
    """Without the prompt where nothing needs it: its values are tested."""
    config = generation_config
    needs_prompt = config.encoder_repetition_penalty not in (None, 1.0) or config.encoder_no_repeat_ngram_size
    if not needs_prompt and "encoder_input_ids" in kwargs:
        kwargs["encoder_input_ids"] = None
    return original(self, generation_config, *args, **kwargs)


@runs_instead_of(_MIXIN + "._beam_search", with_original=True, may_lack=True)
def beam_search(original: Callable, self: object, input_ids: object, *args: object, **kwargs: object):
    if _is_traced(input_ids):
        raise GenerateError("num_beams=, which reorders the cache after each token")
    return original(self, input_ids, *args, **kwargs)


@runs_instead_of(_MIXIN + "._assisted_decoding", with_original=True, may_lack=True)
def assisted_decoding(original: Callable, self: object, input_ids: object, *args: object, **kwargs: object):
    if _is_traced(input_ids):
        raise GenerateError("an assistant, which proposes as many tokens as data decide")
    return original(self, input_ids, *args, **kwargs)


@runs_instead_of(_MIXIN + "._sample", with_original=True, may_lack=True)
def sample(
    original: Callable,
    self: Any,
    input_ids: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    **model_kwargs: Any,
):
    if not _is_traced(input_ids, *model_kwargs.values()) or not all(hasattr(self, x) for x in _WANTED):
        options = logits_processor, stopping_criteria, generation_config, synced_gpus, streamer
        return original(self, input_ids, *options, **model_kwargs)
    _expect_supported(generation_config, stopping_criteria, synced_gpus, streamer)
    decoding = _Decoding(self, logits_processor, stopping_criteria, generation_config, input_ids, model_kwargs)
    tokens = decoding.tokens()
    if not generation_config.return_dict_in_generate:
        return tokens
    code = sys.modules[_MODULE]
    is_pair = self.config.is_encoder_decoder
    kind = code.GenerateEncoderDecoderOutput if is_pair else code.GenerateDecoderOnlyOutput
    return kind(sequences=tokens, past_key_values=decoding.fixed.get("past_key_values"))


def _expect_supported(config: Any, stopping_criteria: Any, synced_gpus: bool, streamer: object) -> None:
    if streamer is not None:
        raise GenerateError("a streamer, which needs each token at once")
    if synced_gpus:
        raise GenerateError("synced_gpus=True, where processes wait for each other after each token")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise GenerateError(f"{name}=True, which has a tensor for each token, as many as data decide")
    if any(type(criterion).__name__ == "MaxTimeCriteria" for criterion in stopping_criteria):
        raise GenerateError("max_time=, which a compiled program cannot measure")


class _Decoding:
    """A prompt, and the tokens that follow it.

    Args:
        kwargs: what the model takes beside the tokens.
    """

    def __init__(self, model: Any, processor: Any, criteria: Any, config: Any, prompt: Any, kwargs: dict[str, object]):
        self._model, self._processor, self._criteria, self._config = model, processor, criteria, config
        self._prompt, self._call = prompt, this_call()
        self._ends = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._is_data_decided = any(type(criterion).__name__ != "MaxLengthCriteria" for criterion in criteria)
        self.fixed: dict[str, Any] = kwargs
        """The model's arguments beside the tokens that are the same in all iterations."""
        self._grown: dict[str, torch.Tensor] = {}  # what is longer in each, with room for all
        self._lengths: dict[str, int] = {}  # after the first
        self._before: dict[str, Any] = {}  # what objects are like

    def tokens(self) -> Any:
        model, prompt, config = self._model, self._prompt, self._config
        unfinished = torch.ones(prompt.shape[0], dtype=torch.long, device=prompt.device)
        outputs = of_user(model._prefill)(prompt, config, self.fixed, is_first_iteration=not config.is_assistant)
        ids, unfinished, after = self._choose(outputs, prompt, unfinished, dict(self.fixed))
        more = config.max_length - ids.shape[1]
        if more <= 0:
            return ids
        self._sort(after, more)
        self._capacity = ids.shape[1] + more
        ids = torch.nn.functional.pad(ids, (0, more))
        stream = self._call.stream
        self._stream = stream.state
        drawn = lift(torch.tensor(self._stream.taken)) + wrap(jnp.asarray(self._stream.before), torch.int64)
        carried = (torch.tensor(0), drawn, ids, unfinished, *self._grown.values())
        self._before = self._outline()
        with model._optimize_model_for_decode(), retried() as tries:
            carried = while_loop(self._goes_on, self._next, carried)
        if tries.error is not None:
            raise GenerateError(f"code in each iteration that cannot be followed: {tries.error}")
        count, drawn, ids, *_ = carried
        if self._stream.key is not None:
            stream.state = self._stream._replace(taken=0, before=lift(drawn).read())
        return self._sized(ids, count, self._first) if self._is_data_decided else ids

    @property
    def _first(self) -> int:
        return self._prompt.shape[1] + 1

    def _goes_on(self, count: Any, drawn: Any, ids: Any, unfinished: Any, *grown: Any) -> Any:
        del count, drawn, ids, grown
        return unfinished.max() != 0

    def _next(self, count: Any, drawn: Any, ids: Any, unfinished: Any, *grown: Any) -> tuple:
        model, stream = self._model, self._call.stream
        count = count.clamp(0, self._capacity - self._first)
        names = [*self._grown]
        kwargs = {
            **self.fixed,
            **{name: self._sized(x, count, self._lengths[name]) for name, x in zip(names, grown, strict=True)},
        }
        self._expect_same_structure(kwargs)  # as what an abandoned run has left
        start = stream.state
        stream.state = self._stream._replace(taken=0, before=lift(drawn).read())
        inputs = of_user(model.prepare_inputs_for_generation)(
            self._sized(ids, count, self._first), next_sequence_length=1, **kwargs
        )
        outputs = model(**inputs, return_dict=True)
        ids, unfinished, after = self._choose(outputs, self._sized(ids, count, self._first), unfinished, kwargs)
        end = stream.state
        stream.state = start
        self._expect_same_structure(after)
        if end.key is not self._stream.key:
            raise GenerateError("code that seeds random numbers in each iteration")
        drawn = wrap(lax.convert_element_type(end.before + end.taken, lift(drawn).read().dtype), torch.int64)
        ids = self._padded_to(ids, self._capacity)
        grown = [self._padded_to(after[name], self._grown[name].shape[-1]) for name in names]
        return (count + 1, drawn, ids, unfinished, *grown)

    def _choose(
        self, outputs: Any, ids: Any, unfinished: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The next token, as transformers chooses it: all tokens, the unfinished rows, and the model's next
        arguments.
        """
        config = self._config
        note_made(kwargs)
        kwargs = of_user(self._model._update_model_kwargs_for_generation)(
            outputs, kwargs, is_encoder_decoder=self._model.config.is_encoder_decoder
        )
        logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=ids.device)
        scores = of_user(self._processor)(ids, logits)
        if config.do_sample:
            tokens = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(1)
        else:
            tokens = torch.argmax(scores, dim=-1)
        if self._ends:
            tokens = tokens * unfinished + config._pad_token_tensor * (1 - unfinished)
        ids = torch.cat([ids, tokens[:, None]], dim=-1)
        unfinished = unfinished & ~of_user(self._criteria)(ids, None)
        return ids, unfinished, kwargs

    def _sort(self, after: dict[str, object], more: int) -> None:
        """Separates the arguments that grow with each token from those that stay."""
        before = self.fixed
        for name, value in after.items():
            old = before.get(name)
            if not isinstance(value, torch.Tensor) or value is old or not isinstance(old, torch.Tensor):
                continue
            if value.shape != (*old.shape[:-1], old.shape[-1] + 1):
                raise GenerateError(f"a model that makes another {name} of shape {tuple(value.shape)} after each token")
            self._lengths[name] = value.shape[-1]
            self._grown[name] = torch.nn.functional.pad(value, (0, more))
        self.fixed = {name: value for name, value in after.items() if name not in self._grown}

    def _sized(self, values: Any, count: Any, length: int) -> Any:
        """The valid part of an array whose last dimension has room for all iterations: `count` more than `length`."""
        array = lift(values).read()
        order = (array.ndim - 1, *range(array.ndim - 1))
        with self._call.inside():
            return with_length(
                lax.transpose(array, order),
                lift(count + length).read(),
                array.ndim - 1,
                values.dtype,
            )

    def _padded_to(self, values: Any, capacity: int) -> Any:
        found = rows_and_length(values, values.ndim - 1)
        if found is None:
            raise GenerateError("a model that makes tensors of another length")
        rows = padded_to(found[0], capacity)
        return wrap(lax.transpose(rows, (*range(1, rows.ndim), 0)), values.dtype)

    def _outline(self) -> dict[str, Any]:
        return _outline({"model": self._model, "logits_processor": self._processor, **self.fixed})

    def _expect_same_structure(self, after: dict[str, object]) -> None:
        """Refuses changes other than in the values of tensors.

        Args:
            after: what the model takes.

        Raises:
            GenerateError: there is such a change, which it names.
        """
        before, now = self._before, self._outline()
        for name in self.fixed:
            if after.get(name) is not self.fixed[name]:
                raise GenerateError(f"a model that makes another {name} after each token")
        path = next((path for path in {**before, **now} if not _is_same(before.get(path), now.get(path))), None)
        if path is not None:
            raise GenerateError(f"a model for which {path} is another one after each token")


_OPAQUE = (torch.Tensor, type, types.FunctionType, types.MethodType)  # what is not looked into


def _outline(roots: dict[str, object]) -> dict[str, Any]:
    """The contents of objects at any depth, by path, without the values of tensors."""
    found: dict[str, object] = {}
    seen: set[int] = set()
    left = [*roots.items()]
    while left:
        path, value = left.pop()
        codec = None if isinstance(value, _OPAQUE) else codec_of(type(value))
        if codec is None:
            found[path] = value
        elif id(value) not in seen:
            seen.add(id(value))
            head, items = codec.open(value)
            found[path] = head
            left.extend((path + name, item) for name, item in zip(item_names(value, len(items)), items, strict=True))
    return found


def _is_same(one: object, other: object) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    try:
        return bool(one == other)
    except Exception:  # it has many values, or none
        return False
