"""Loading language models: any causal or masked one that transformers knows, from a folder or the Hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from helene.inputs.files import read_text
from llm_bench.models import attention, positions
from llm_bench.models.fingerprint import fingerprint as of_content
from llm_bench.models.positions import Side
from llm_bench.tasks.task import Kind

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_HEADS = {"causal": ("ForCausalLM", "LMHeadModel"), "masked": ("ForMaskedLM",)}


@dataclass
class LanguageModel:
    """A model with what is needed to feed it.

    Attributes:
        module: The transformers model, in evaluation mode.
        tokenizer: Its tokenizer.
        kind: ``causal`` or ``masked``.
        name: For people; no path.
        fingerprint: Of configuration, tokenizer and weights: equal names with other content are told apart.
        before: Special tokens that the tokenizer puts in front.
        after: Those that it puts behind.
        max_length: Longest sequence that the positions allow.
        side: Where rows are filled up: left for causal models, right for masked ones, unless
            `llm_bench.evaluation.plain_forward` found the model exact on the other side alone.
        num_tokens: Rows of its embedding: the tokens that it knows.
    """

    module: Any
    tokenizer: Any
    kind: Kind
    name: str
    fingerprint: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    max_length: int
    side: Side = "left"
    num_tokens: int = 1 << 62

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.module.parameters()).device

    @property
    def pad_id(self) -> int:
        """A token to fill rows with; masked out, so any that the model knows will do."""
        ids = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        return next((i for i in ids if i is not None and i < self.num_tokens), 0)


def load(source: str | os.PathLike[str], kind: Kind, dtype: str = "float32", device: str = "cpu") -> LanguageModel:
    """Load a model and its tokenizer.

    Args:
        source: A folder, or a name on the Hub.
        kind: What it is to be used as.
        dtype: Of the parameters: float32, bfloat16, float16 or float64.
        device: For instance ``cpu`` or ``cuda``.

    Raises:
        ValueError: If the dtype or device is not there, the folder has no tokenizer or lacks weights, a file of these
            is damaged, or the architecture does not fit the kind.
        FileNotFoundError: If there is no such folder or name.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    if dtype not in DTYPES:
        raise ValueError(
            f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}; quantised weights cannot be perturbed"
        )
    check_device(device)
    config = _config(source)
    _check_architecture(config, kind, source)
    tokenizer = load_tokenizer(source)
    auto = AutoModelForCausalLM if kind == "causal" else AutoModelForMaskedLM
    try:
        with quiet():
            module, info = auto.from_pretrained(
                source,
                dtype=DTYPES[dtype],
                attn_implementation="eager",  # and ours by `wrap`, where the architecture lets it be chosen
                output_loading_info=True,
                trust_remote_code=False,
            )
    except SafetensorError as err:
        raise ValueError(
            f"{_damaged(source) or f'a weight file of {source}'} is damaged: {err}; copy or download it anew"
        ) from err
    missing = [name for name in info["missing_keys"] if "position_ids" not in name]
    if missing:
        raise ValueError(
            f"{source} has no weights for {', '.join(sorted(missing)[:3])} ({len(missing)} in all), so they would be "
            f"random; give a model with a {'language' if kind == 'causal' else 'masked-language'} head"
        )
    module.to(device).eval()
    name = Path(source).name if os.path.isdir(source) else str(source)
    return wrap(module, tokenizer, kind, name, of_content(source, config))


def _damaged(source: str | os.PathLike[str]) -> Path | None:
    """The first weight file of a folder that cannot be opened."""
    for path in sorted(Path(source).glob("*.safetensors")):
        try:
            safe_open(path, framework="pt")
        except SafetensorError:
            return path
    return None


def wrap(module: Any, tokenizer: Any, kind: Kind, name: str, fingerprint: str = "none") -> LanguageModel:
    """A `LanguageModel` of what is in memory already; sets the attention of `llm_bench.models.attention`.

    Raises:
        ValueError: If the tokenizer has tokens that the model does not know.
    """
    with quiet():
        module.set_attn_implementation(attention.NAME)
    before, after = special_tokens(tokenizer)
    num_tokens = int(module.get_input_embeddings().weight.shape[0])
    _check_vocabulary(tokenizer, (*before, *after, tokenizer.mask_token_id), num_tokens, name)
    longest = positions.longest(module.config)
    side: Side = "left" if kind == "causal" else "right"
    return LanguageModel(module.eval(), tokenizer, kind, name, fingerprint, before, after, longest, side, num_tokens)


def _check_vocabulary(tokenizer: Any, special: Sequence[int | None], num_tokens: int, name: str) -> None:
    """Raise ValueError unless the model knows the whole vocabulary, and the special tokens in use.

    Others that were added, such as one to pad with, are looked for in the texts.
    """
    largest = max(tokenizer.vocab_size - 1, *(token for token in special if token is not None), 0)
    if largest >= num_tokens:
        raise ValueError(
            f"the tokenizer of {name} has the token {largest}, the model's embedding {num_tokens} rows; give the "
            "tokenizer that belongs to it"
        )


def load_tokenizer(source: str | os.PathLike[str]) -> Any:
    """The fast tokenizer of a folder or Hub name.

    Raises:
        ValueError: If there is none.
    """
    from transformers import AutoTokenizer

    if os.path.isdir(source) and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(f"{source} has no tokenizer ({', '.join(_TOKENIZER_FILES)}); save it there with the model")
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as err:
        raise ValueError(f"the tokenizer of {source} cannot be loaded: {type(err).__name__}: {err}") from err


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer puts in front of and behind a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise ValueError(f"the tokenizer changes a text when it adds special tokens: {bare} becomes {full}")


def check_device(device: str, *, is_used: bool = True) -> None:
    """Raise ValueError for a device of a kind that runs know nothing of, or, where it is used, that is not there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"the device must be cpu, cuda or one such as cuda:1, got {device!r}")
    if not is_used:
        return
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA device; use --device cpu")
    count = torch.cuda.device_count()
    if ":" in device and int(device.partition(":")[2]) >= count:
        raise ValueError(f"device {device!r} was asked for, but torch sees {count} of them, the first is cuda:0")


def num_parameters(module: nn.Module) -> dict[str, int]:
    """Trained, all, and embedding parameters, each tensor counted once."""
    embedding = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    parameters = list(module.parameters())
    return {
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "all": sum(p.numel() for p in parameters),
        "embedding": sum(p.numel() for p in parameters if id(p) in embedding),
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and advice."""
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


def _config(source: str | os.PathLike[str]) -> Any:
    from transformers import AutoConfig

    if os.path.isdir(source) and not (Path(source) / "config.json").is_file():
        raise ValueError(f"{source} has no config.json; give the folder that save_pretrained wrote")
    looks_like_path = os.path.isabs(source) or str(source).startswith(".")
    if looks_like_path and not os.path.isdir(source):
        raise FileNotFoundError(f"there is no model folder {source}")
    try:
        with quiet():
            return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as err:
        if os.path.isdir(source):
            raise ValueError(_why_no_config(Path(source), err)) from err
        if "trust_remote_code" in str(err):
            raise ValueError(_OWN_CODE.format(source)) from err
        raise FileNotFoundError(
            f"there is no model {source}: not a folder here, and the Hub does not give it ({type(err).__name__})"
        ) from err


_OWN_CODE = (
    "{} needs Python files of its own (auto_map in its config.json), which are never run here; give a model that "
    "transformers knows"
)


def _why_no_config(folder: Path, err: Exception) -> str:
    """What is wrong with the configuration of a folder."""
    path = folder / "config.json"
    try:
        config = json.loads(read_text(path))
    except json.JSONDecodeError as broken:
        return f"{path} is not JSON ({broken}); copy or download it anew"
    if not isinstance(config, dict):
        return f"{path} is a {type(config).__name__}; it must be an object, as save_pretrained writes it"
    if "auto_map" in config:
        return _OWN_CODE.format(folder)
    from transformers import CONFIG_MAPPING, __version__

    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        return (
            f"{path} has the model_type {kind!r}, which transformers {__version__} does not know; take a newer "
            "version, or a model that it knows"
        )
    return f"{path} is no configuration of {kind} ({' '.join(str(err).split())[:200]}); copy or download it anew"


def check_kind(source: str | os.PathLike[str], kind: Kind) -> None:
    """Raise ValueError where a model is of another kind; nothing is loaded. See `load` for what else it raises."""
    _check_architecture(_config(source), kind, source)


def _check_architecture(config: Any, kind: Kind, source: Any) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    names = config.architectures or []
    named = {k for k, heads in _HEADS.items() if any(name.endswith(heads) for name in names)}
    known = type(config) in (MODEL_FOR_CAUSAL_LM_MAPPING if kind == "causal" else MODEL_FOR_MASKED_LM_MAPPING)
    if not known or (named and kind not in named):
        usual = {"causal": "OPT, Llama, Gemma, GPT-2", "masked": "RoBERTa, BERT"}[kind]
        raise ValueError(
            f"{source} is a {' or '.join(names) or config.model_type}, which is no {kind} language model; "
            f"{kind} tasks need {usual} or the like"
        )


def kind_of(source: str | os.PathLike[str]) -> Kind:
    """What a model is, by the head that its configuration names; see `load` for what it raises."""
    config = _config(source)
    names = config.architectures or []
    for kind, heads in _HEADS.items():
        if any(name.endswith(heads) for name in names):
            return kind  # type: ignore[return-value]
    raise ValueError(
        f"{source} is a {' or '.join(names) or config.model_type}: neither a causal nor a masked language model; "
        "give one with a head"
    )


def fingerprint(source: str | os.PathLike[str]) -> str:
    """See `llm_bench.models.fingerprint.fingerprint`; nothing is loaded. See `load` for what it raises."""
    return of_content(source, _config(source))
