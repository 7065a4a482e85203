"""Tokens of options against a slow reading of MeZO's rule, and of templates against pieces joined as text."""

import copy

import numpy as np
import pytest
import torch
from llm_families import CAUSAL, make, metaspace

from llm_bench.data.encode import Encoded, demonstration, encode, label_word
from llm_bench.data.folder import read_split
from llm_bench.evaluation.evaluate import score
from llm_bench.models.loading import wrap
from llm_bench.tasks import get_task, task_names
from llm_bench.tasks.task import MASK, Example, Sentence

OPT, ROBERTA, BERT = make("opt"), make("roberta"), make("bert")
SST2 = get_task("sst2", "causal")


def causal(prompt, *options, model=OPT, **more):
    return encode(model, SST2, Example(prompt, options, (0,)), **more)


def scored(encoded, option):
    """The tokens an option is scored on, and the row before each."""
    return [(encoded.rows[encoded.sites[s][0]][: encoded.sites[s][1] + 1], t) for s, t in encoded.options[option]]


def mezo_rule(model, prompt, option):
    """The last n tokens of prompt and option together, n the difference of their lengths; spaces stripped first."""
    ids = model.tokenizer((prompt + option).strip(" "))["input_ids"]
    n = len(ids) - len(model.tokenizer(prompt.strip(" "))["input_ids"])
    return [(tuple(ids[:p]), ids[p]) for p in range(len(ids) - n, len(ids))]


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("name", task_names("causal"))
def test_options_are_the_last_tokens_as_mezo_counts_them(family, name, toy_data):
    model, task = make(family), get_task(name, "causal")
    for row in read_split(toy_data, task, "test")[:5]:
        example = task.make(row)
        encoded = encode(model, task, example)
        for k, option in enumerate(example.options):
            assert scored(encoded, k) == mezo_rule(model, example.prompt, option)


def test_a_trailing_space_of_the_prompt_is_no_token():
    assert causal("fine . It was ", "great").options[0]
    with pytest.raises(ValueError, match=r"option '' adds no token to the prompt"):
        causal("fine . It was", "")
    with pytest.raises(ValueError, match=r"option '  ' adds no token"):
        causal("fine . It was", "  ")
    # a newline is a token of the prompt, and of an option
    assert len(causal("fine\n", "Yes").options[0]) == len(OPT.tokenizer("Yes", add_special_tokens=False)["input_ids"])
    assert causal("Answer:", " sea\n").rows[0][-1] != OPT.tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    assert (
        causal("Answer:", " sea\n").options[0][-1][1] == OPT.tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    )


def test_options_that_differ_in_their_last_token_alone_share_a_row():
    short = causal("a fine film . It was", " terrible", " great")
    assert (len(short.rows), len(short.sites)) == (1, 1)
    assert short.rows[0] == short.prompt
    longer = causal("Anna is", " in the garden", " in the office")
    assert (len(longer.rows), len(longer.sites)) == (1, 3)
    apart = causal("Anna is", " in the garden", " at the office")
    assert len(apart.rows) == 2
    assert len(apart.sites) == sum(map(len, apart.options))


def test_a_merged_boundary_is_counted():
    assert OPT.tokenizer.tokenize("the garden")[-1] == "Ġgarden"
    merging = causal("the gar", "den is in the")
    assert merging.merged == 1
    assert scored(merging, 0) == mezo_rule(OPT, "the gar", "den is in the")
    assert causal("the", " garden").merged == 0


def test_truncation_drops_the_left_and_keeps_the_first_token_and_the_option():
    prompt = " ".join(["the film is funny and the plot is dull ."] * 60) + " It was"
    encoded = causal(prompt, " terrible", " great", limit=40)
    (row,) = encoded.rows
    assert len(row) == 39
    assert row[0] == OPT.before[0]
    assert encoded.cut > 100
    tail = OPT.tokenizer(prompt + " great", add_special_tokens=False)["input_ids"][-39:]
    assert row[1:] == tuple(tail[:-1])
    assert [t for _, t in encoded.options[1]] == tail[-1:]
    assert row.count(OPT.before[0]) == 1
    assert len(causal(prompt, " great").rows[0]) == OPT.max_length - 1


def test_an_option_longer_than_the_model_is_an_error():
    with pytest.raises(ValueError, match=r"option .* alone has \d+ tokens, the model takes 12"):
        causal("The end:", " the film is funny and the plot is dull ." * 3, limit=12)


def test_a_tokenizer_without_first_token_works_and_predicts_no_first_token():
    model = wrap(make("llama").module, metaspace(bos=False), "causal", "no first token")
    assert model.before == ()
    encoded = causal("the film", " was", model=model)
    assert encoded.rows[0] == tuple(model.tokenizer("the film")["input_ids"])


def test_demonstrations_go_in_front_and_leave_the_options_tokens_alone():
    shown = [Example("a film . It was", (" bad", " good"), (1,)), Example("a plot . It was", (" bad", " good"), (0,))]
    assert demonstration(shown[0]) == "a film . It was good"
    alone, after = (
        causal("the cast . It was", " bad", " good"),
        causal("the cast . It was", " bad", " good", demonstrations=shown),
    )
    text = "a film . It was good\n\na plot . It was bad\n\nthe cast . It was"
    assert after.rows == ((*OPT.before, *OPT.tokenizer(text, add_special_tokens=False)["input_ids"]),)
    assert [[t for _, t in o] for o in after.options] == [[t for _, t in o] for o in alone.options]


def test_only_gold_keeps_the_first_right_option():
    encoded = encode(OPT, SST2, Example("Anna is", (" in the garden", " in the office", " at home"), (1, 2)))
    gold = encoded.only_gold()
    assert scored(gold, 0) == scored(encoded, 1)
    assert (len(gold.rows), len(gold.options), gold.gold) == (1, 1, (0,))


@pytest.mark.parametrize("model", [ROBERTA, BERT], ids=["byte-level", "wordpiece"])
@pytest.mark.parametrize("name", task_names("masked"))
def test_pieces_encoded_apart_equal_the_text_encoded_whole(model, name, sample_data):
    """Up to places where a byte-level tokenizer joins what a template puts together: counted, and known to be few."""
    task = get_task(name, "masked")
    rows = read_split(sample_data, task, "test")[:100]
    differing = []
    for row in rows:
        example = task.make(row)
        text = "".join(model.tokenizer.mask_token if piece == MASK else piece for piece in example.pieces)
        whole = tuple(model.tokenizer(text)["input_ids"])
        encoded = encode(model, task, example)
        if encoded.rows[0] != whole and not encoded.cut:
            differing.append((example.pieces, text))
    # "?" behind a sentence that ends in more punctuation (a quotation mark, say) is where they may differ
    for pieces, _ in differing:
        assert pieces[1] == "?"
        assert not pieces[0][-1:].isalnum()
    assert len(differing) <= len(rows) / 5


@pytest.mark.parametrize("model", [ROBERTA, BERT], ids=["byte-level", "wordpiece"])
@pytest.mark.parametrize("name", task_names("masked"))
def test_masked_rows_hold_the_mask_once_and_label_words_are_single_tokens(model, name, sample_data):
    task = get_task(name, "masked")
    for row in read_split(sample_data, task, "test")[:50]:
        encoded = encode(model, task, task.make(row))
        (ids,) = encoded.rows
        ((_, place),) = encoded.sites
        assert ids[place] == model.tokenizer.mask_token_id
        assert ids.count(model.tokenizer.mask_token_id) == 1
        assert ids[: len(model.before)] == model.before
        assert ids[-len(model.after) :] == model.after
        assert all(len(option) == 1 for option in encoded.options)
    words = [model.tokenizer.decode([t]).strip().lower() for ((_, t),) in encoded.options]
    assert words == [word.lower() for word in task.make(row).options]


def test_uncased_vocabularies_take_the_lower_cased_word():
    assert BERT.tokenizer.convert_ids_to_tokens(label_word(BERT, "Yes")) == "yes"
    assert ROBERTA.tokenizer.convert_ids_to_tokens(label_word(ROBERTA, "Yes")) == "ĠYes"


def test_label_words_that_are_several_tokens_or_unknown_or_equal_are_errors():
    for model in (ROBERTA, BERT):
        with pytest.raises(ValueError, match="label word 'Zyzzyva' must be one token"):
            label_word(model, "Zyzzyva")
    with pytest.raises(ValueError, match="must be one token"):
        label_word(BERT, "中")
    same = Example("", ("Yes", "yes"), (0,), (), (Sentence("x"), MASK))
    with pytest.raises(ValueError, match="two label words of Yes, yes are one token"):
        encode(BERT, get_task("sst2", "masked"), same)


def test_long_sentences_are_cut_so_that_the_template_survives():
    task = get_task("rte", "masked")
    long = "the film is funny and the plot is dull . " * 40
    example = task.make({"premise": long, "hypothesis": long, "label": "entailment"})
    encoded = encode(ROBERTA, task, example)
    first = ROBERTA.tokenizer(str(example.pieces[0]), add_special_tokens=False)["input_ids"]
    (row,), ((_, place),) = encoded.rows, encoded.sites
    assert len(row) == task.max_length == 256
    assert place == 1 + 240 + 1, "240 tokens of the first sentence, then the question mark"
    assert row[1:241] == tuple(first[:240])
    assert row[-1] == ROBERTA.after[0]
    assert encoded.cut > 0
    short = encode(ROBERTA, task, example, limit=20)
    assert len(short.rows[0]) == 20
    with pytest.raises(ValueError, match="template alone is longer than the 4 tokens"):
        encode(ROBERTA, task, example, limit=4)


def test_trec_limits_the_question_not_the_colon():
    task = get_task("trec", "masked")
    example = task.make({"text": "Where is Anna ? " * 60, "coarse_label": "LOC"})
    row = encode(ROBERTA, task, example).rows[0]
    assert len(row) == 110 + 2 + 2


def test_a_mask_in_the_text_is_refused():
    task = get_task("sst2", "masked")
    example = task.make({"sentence": "a <mask> film", "label": "positive"})
    with pytest.raises(ValueError, match="hold the mask token once, this one holds it 2 times"):
        encode(ROBERTA, task, example)


def test_encoded_examples_are_plain_data():
    encoded = causal("a film . It was", " bad", " good")
    assert encoded == Encoded(encoded.rows, encoded.sites, encoded.options, (0,), (), encoded.prompt)


def test_tokens_that_the_model_does_not_know():
    """A token to pad with that was added without a row for it never reaches the model; one in a text is named."""
    model = make("llama", dtype=torch.float32)
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    padded = wrap(model.module, tokenizer, "causal", "padded")
    assert padded.num_tokens == len(model.tokenizer) == tokenizer.pad_token_id
    task = get_task("sst2", "causal")
    rows = [{"sentence": text, "label": "positive"} for text in ("a film", "a much longer film of a film")]
    same = [score(m, [encode(m, task, task.make(row)) for row in rows]).means for m in (model, padded)]
    assert all(map(np.array_equal, *same))
    with pytest.raises(ValueError, match=r"the token '\[PAD\]', number \d+ .*take the token out of the data"):
        encode(padded, task, task.make({"sentence": "a [PAD] film", "label": "positive"}))
    small = make("gpt2", dtype=torch.float32)
    small.module.resize_token_embeddings(300)
    with pytest.raises(ValueError, match=r"tokenizer of small has the token \d+, the model's embedding 300 rows"):
        wrap(small.module, small.tokenizer, "causal", "small")
