"""Tiny random models of many families, and tokenizers of the kinds that they come with."""

from functools import cache

import torch

from llm_bench.models.loading import wrap
from llm_bench.tiny.tokenizer import make_tokenizer

CAUSAL = ("opt", "gpt2", "llama", "gemma3_text", "gemma2")
MASKED = ("roberta", "bert", "distilbert")


@cache
def byte_level(kind):
    return make_tokenizer(kind)


@cache
def wordpiece():
    """An uncased WordPiece tokenizer, as BERT's."""
    import itertools

    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from llm_bench.tiny import grammar
    from llm_bench.tiny.tokenizer import _label_words

    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    text = itertools.chain(itertools.islice(grammar.documents(0), 800), _label_words())
    core.train_from_iterator(
        text, trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )


@cache
def metaspace(bos=True):
    """A tokenizer that turns spaces into ▁, as Llama's and Gemma's, with or without a first token."""
    import itertools

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from llm_bench.tiny import grammar

    core = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    core.decoder = decoders.Metaspace(prepend_scheme="never")
    text = list(itertools.islice(grammar.documents(0), 800))
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"],
        initial_alphabet=list(map(chr, range(10, 127))),
    )
    trainer.show_progress = False
    core.train_from_iterator(text, trainer)
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


def make(family, seed=0, dtype=torch.float64, layers=2, positions=256):
    """A random model of the family, as a `LanguageModel`."""
    import transformers as tf

    small = {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4}
    tokenizer = {"bert": wordpiece, "distilbert": wordpiece, "roberta": lambda: byte_level("masked")}.get(
        family, metaspace if family.startswith(("llama", "gemma")) else lambda: byte_level("causal")
    )()
    vocabulary = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    rope = {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "max_position_embeddings": positions}
    window = {"sliding_window": 16, "query_pre_attn_scalar": 8}
    encoder = {"intermediate_size": 64, "type_vocab_size": 1}
    build = {
        "opt": lambda: (
            tf.OPTForCausalLM,
            tf.OPTConfig(
                **small, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=positions, **vocabulary, **special
            ),
        ),
        "gpt2": lambda: (
            tf.GPT2LMHeadModel,
            tf.GPT2Config(n_embd=32, n_layer=layers, n_head=4, n_positions=positions, **vocabulary, **special),
        ),
        "llama": lambda: (tf.LlamaForCausalLM, tf.LlamaConfig(**small, **rope, **vocabulary, **special)),
        "gemma3_text": lambda: (
            tf.Gemma3ForCausalLM,
            tf.Gemma3TextConfig(**small, **rope, **window, **vocabulary, **special),
        ),
        "gemma2": lambda: (tf.Gemma2ForCausalLM, tf.Gemma2Config(**small, **rope, **window, **vocabulary, **special)),
        "roberta": lambda: (
            tf.RobertaForMaskedLM,
            tf.RobertaConfig(**small, **encoder, max_position_embeddings=positions + 2, **vocabulary, **special),
        ),
        "bert": lambda: (
            tf.BertForMaskedLM,
            tf.BertConfig(**small, **encoder, max_position_embeddings=positions, **vocabulary),
        ),
        "distilbert": lambda: (
            tf.DistilBertForMaskedLM,
            tf.DistilBertConfig(dim=32, n_layers=layers, n_heads=4, hidden_dim=64, **vocabulary),
        ),
    }
    cls, config = build[family]()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = cls(config)
        for parameter in module.parameters():  # library defaults are so small that options would hardly differ
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
    kind = "masked" if family in MASKED else "causal"
    return wrap(module.to(dtype), tokenizer, kind, f"random {family}", f"{family}/{seed}")
