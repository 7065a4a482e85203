"""Prompts against strings written out by hand from MeZO's and LM-BFF's templates."""

import pytest

from llm_bench.data.folder import read_split
from llm_bench.tasks import get_task, task_names
from llm_bench.tasks.task import MASK, Sentence, without_final_punctuation

PAIRS = [(kind, name) for kind in ("masked", "causal") for name in task_names(kind)]


def made(kind, name, **row):
    return get_task(name, kind).make(row)


def test_the_papers_fifteen_pairs_come_first_in_its_order():
    assert task_names("masked")[:6] == ("sst2", "sst5", "snli", "mnli", "rte", "trec")
    assert task_names("causal")[:9] == ("sst2", "rte", "cb", "boolq", "wsc", "wic", "copa", "record", "squad")


CLASSIFICATION = [
    (
        "sst2",
        {"sentence": "  a fine film . ", "label": "positive"},
        "a fine film . It was",
        {"negative": " terrible", "positive": " great"},
    ),
    (
        "rte",
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"},
        'It rains.\nDoes this mean that "It is wet." is true? Yes or No?\n',
        {"entailment": "Yes", "not_entailment": "No"},
    ),
    (
        "cb",
        {"premise": "It rains.", "hypothesis": "it is wet", "label": "neutral"},
        'Suppose It rains. Can we infer that "it is wet"? Yes, No, or Maybe?\n',
        {"entailment": "Yes", "contradiction": "No", "neutral": "Maybe"},
    ),
    (
        "boolq",
        {"passage": "Rain -- It is wet.", "question": "is rain wet", "label": "True"},
        "Rain -- It is wet. Is rain wet?\n",
        {"True": "Yes", "False": "No"},
    ),
    (
        "wsc",
        {"text": "Ann saw Bea ; she waved .", "span1_text": "Bea", "span2_text": "She", "label": "False"},
        'Ann saw Bea ; she waved .\nIn the previous sentence, does the pronoun "she" refer to Bea? Yes or No?\n',
        {"False": "No", "True": "Yes"},
    ),
    (
        "wic",
        {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank.", "label": "True"},
        'Does the word "bank" have the same meaning in these two sentences? Yes, No?\nA bank.\nThe bank.\n',
        {"False": "No", "True": "Yes"},
    ),
]


@pytest.mark.parametrize(("name", "row", "prompt", "words"), CLASSIFICATION, ids=[c[0] for c in CLASSIFICATION])
def test_causal_classification_prompts(name, row, prompt, words):
    task = get_task(name, "causal")
    example = task.make(row)
    assert example.prompt == prompt
    assert dict(zip(task.classes, example.options, strict=True)) == words
    assert [example.options[i] for i in example.gold] == [words[row["label"]]]
    assert task.loss == "classification"


def test_boolq_keeps_a_question_mark_that_is_there():
    example = made("causal", "boolq", passage="P.", question="is it?", label="False")
    assert example.prompt == "P. Is it?\n"
    assert example.options[example.gold[0]] == "No"


def test_copa_joins_by_the_question_and_lowers_all_but_i():
    row = {"premise": "The man fell. ", "choice1": "I laughed.", "choice2": "It hurt.", "label": "choice2"}
    effect = made("causal", "copa", question="effect", **row)
    assert (effect.prompt, effect.options, effect.gold) == ("The man fell so", (" I laughed.", " it hurt."), (1,))
    assert made("causal", "copa", question="cause", **row).prompt == "The man fell because"
    dots = made("causal", "copa", question="cause", **{**row, "premise": "Wait..", "choice1": "It's me."})
    assert dots.prompt == "Wait. because"
    assert dots.options[0] == " it's me."
    assert get_task("copa", "causal").loss == "language_model"


def test_record_replaces_highlights_and_placeholder_and_takes_every_right_entity():
    example = made(
        "causal",
        "record",
        passage="Text.\n@highlight\nOne\n@highlight\nTwo",
        query="He met @placeholder.",
        entities=["Bo", "Al", "Cy"],
        answers=["Al", "Bo"],
    )
    assert example.prompt == "Text.\n- One\n- Two\n-"
    assert example.options == (" He met Bo.", " He met Al.", " He met Cy.")
    assert example.gold == (1, 0)  # the first is the one that is trained on


def test_squad_trains_on_the_first_answer_and_is_judged_by_all():
    answers = {"text": ["the sea", "sea"], "answer_start": [0, 4]}
    example = made("causal", "squad", title="Sea_Side", context="the sea", question=" Where? ", answers=answers)
    assert example.prompt == "Title: Sea_Side\nContext: the sea\nQuestion: Where?\nAnswer:"
    assert example.options == (" the sea\n",)
    assert example.references == ("the sea", "sea")


def test_masked_templates():
    sst2 = made("masked", "sst2", sentence="fine film . ", label="negative")
    assert sst2.pieces == ("fine film .", " It was", MASK, ".")
    assert [isinstance(p, Sentence) for p in sst2.pieces] == [True, False, False, False]
    assert (sst2.options, sst2.gold) == (("terrible", "great"), (0,))
    sst5 = made("masked", "sst5", text="so so", label="neutral")
    assert sst5.options == ("terrible", "bad", "okay", "good", "great")
    assert sst5.options[sst5.gold[0]] == "okay"
    for name in ("snli", "mnli"):
        nli = made("masked", name, premise="A dog runs. ", hypothesis="It sleeps.", label="contradiction")
        assert nli.pieces == ("A dog runs", "?", MASK, ",", " it sleeps.")
        assert nli.options[nli.gold[0]] == "No"
    rte = made("masked", "rte", premise="A dog", hypothesis="An animal.", label="entailment")
    assert rte.pieces == ("A dog", "?", MASK, ",", " an animal.")
    assert rte.options[rte.gold[0]] == "Yes"
    words = {"ABBR": "Expression", "ENTY": "Entity", "DESC": "Description"} | {
        "HUM": "Human",
        "LOC": "Location",
        "NUM": "Number",
    }
    for label, word in words.items():
        trec = made("masked", "trec", text="Who is it ?", coarse_label=label)
        assert trec.pieces == (MASK, ":", " Who is it ?")
        assert trec.options[trec.gold[0]] == word


def test_only_punctuation_is_dropped_from_the_end():
    assert without_final_punctuation(" Yes! ") == "Yes"
    assert without_final_punctuation("Yes") == "Yes"
    assert without_final_punctuation('said "no."') == 'said "no.'
    assert without_final_punctuation("") == ""


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_every_row_of_the_folder_makes_an_example(kind, name, sample_data):
    task = get_task(name, kind)
    if not (sample_data / task.name).is_dir():
        pytest.skip(f"the folder has no rows of {task.name}")
    for split in ("train", "validation", "test"):
        rows = read_split(sample_data, task, split)
        for row in rows:
            example = task.make(row)
            assert example.gold
            assert all(0 <= i < len(example.options) for i in example.gold)
            assert len(set(example.options)) == len(example.options)
            if kind == "masked":
                assert example.pieces.count(MASK) == 1
                assert any(isinstance(p, Sentence) for p in example.pieces)
            else:
                assert example.prompt.strip()
            if task.classes:
                assert task.classes[example.gold[0]] == row[task.labels.column]
                assert set(task.classes) == set(task.labels.names)


def test_rows_by_hand_that_lack_a_field():
    with pytest.raises(ValueError, match="rte needs the field 'hypothesis'; the row has premise, label"):
        made("causal", "rte", premise="p", label="entailment")
    with pytest.raises(ValueError, match=r"sst2 makes no example of 'label' = 1 .*the row has sentence, label"):
        made("masked", "sst2", sentence="a film", label=1)
    with pytest.raises(ValueError, match="sst2 needs the field 'label'; the row has no field"):
        made("masked", "sst2")


def test_unknown_tasks_are_named():
    with pytest.raises(ValueError, match="no masked task 'copa'; there are sst2"):
        get_task("copa", "masked")
    with pytest.raises(ValueError, match="kind must be causal or masked"):
        get_task("sst2", "seq2seq")
