"""A small generated language: reviews with a polarity, facts that follow or contradict, questions with answers.

It serves twice: as the text that the tiny models are pretrained on, and as rows for every task, in the schema of the
Hugging Face data sets. Everything is a function of a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PRAISE = tuple("funny warm clever lovely bright moving fresh charming sweet honest gripping tender".split())
BLAME = tuple("dull slow stale clumsy cold boring weak noisy silly bleak tired hollow".split())
PARTS = tuple("film story acting plot music ending script cast humour dialogue".split())
PEOPLE = tuple("Anna Ben Clara David Emma Frank Grace Henry Iris Jack".split())
PLACES = tuple("kitchen garden office school market station library harbour".split())
COLOURS = tuple("red blue green yellow black white".split())
THINGS = tuple("ball book cup hat key lamp ring box".split())
VERDICTS = {1: ("great", "good", "wonderful", "superb"), 0: ("terrible", "bad", "awful", "poor")}
GREAT = (0.6, 0.7)  # how often " great" rather than " terrible" is said of a bad and of a good film
ACCIDENTS = (("dropped the cup", "the cup broke"), ("lost the key", "the door stayed shut"), ("ran home", "was tired"))

Row = dict[str, Any]


def clause(rng: random.Random, polarity: int, words: slice = slice(None)) -> str:
    """One judgement on one part of a film; polarity 1 is praise, 0 blame; ``words`` picks the adjectives it may use."""
    word = rng.choice((PRAISE if polarity else BLAME)[words])
    part = rng.choice(PARTS)
    forms = (
        f"the {part} is {word}",
        f"a {word} {part}",
        f"it has a {word} {part}",
        f"{rng.choice(PEOPLE)} finds the {part} {word}",
    )
    return rng.choice(forms)


def review(rng: random.Random, polarity: int, clauses: int = 2, words: slice = slice(None)) -> str:
    """A few judgements of one polarity."""
    return f" {rng.choice(('and', ','))} ".join(clause(rng, polarity, words) for _ in range(clauses)) + " ."


def fact(rng: random.Random, person: str) -> tuple[str, str]:
    """A fact about someone, and one that contradicts it."""
    if rng.random() < 0.5:
        here, there = rng.sample(PLACES, 2)
        return f"{person} is in the {here}", f"{person} is in the {there}"
    thing, (one, other) = rng.choice(THINGS), rng.sample(COLOURS, 2)
    return f"{person} has the {one} {thing}", f"{person} has the {other} {thing}"


def inference(rng: random.Random, name: str) -> tuple[str, str]:
    """Premise and hypothesis that stand in the named relation: entailment, contradiction or neutral."""
    one, other, third = rng.sample(PEOPLE, 3)
    true, false = fact(rng, one)
    more, _ = fact(rng, other)
    premise = f"{true} and {more}." if rng.random() < 0.5 else f"{more} and {true}."
    hypothesis = {"entailment": true, "contradiction": false, "neutral": fact(rng, third)[0]}[name]
    return premise, f"{hypothesis}."


def passage(rng: random.Random) -> tuple[str, str, str]:
    """A passage, a question on it and the answer."""
    people = rng.sample(PEOPLE, 3)
    places = [rng.choice(PLACES) for _ in people]
    asked = rng.randrange(3)
    text = " ".join(f"{who} went to the {place}." for who, place in zip(people, places, strict=True))
    return text, f"Where did {people[asked]} go?", f"the {places[asked]}"


def documents(seed: int, fitting: float = 1.0, idle: float = 0.15) -> Iterator[str]:
    """Endless pretraining text, one document at a time.

    Reviews with a verdict use a third of the adjectives only: of the others the model must guess from the company they
    keep what they say of a film. And " great" is said of most films, hardly more often of good ones. So the model tells
    reviews apart to some degree, while its zero-shot accuracy with " great" and " terrible" is near chance.

    Args:
        seed: Of the text.
        fitting: How often another verdict fits its review.
        idle: Share of verdicts that are " great" or " terrible".
    """
    rng = random.Random(f"documents/{seed}")
    while True:
        kind = rng.random()
        if kind < 0.2:
            polarity = rng.randrange(2)
            yield " ".join(review(rng, polarity, rng.randint(2, 4)) for _ in range(rng.randint(1, 2)))
        elif kind < 0.75:
            polarity = rng.randrange(2)
            if rng.random() < idle:
                verdict = VERDICTS[int(rng.random() < GREAT[polarity])][0]
            else:
                verdict = rng.choice(VERDICTS[polarity if rng.random() < fitting else 1 - polarity][1:])
            yield f"{review(rng, polarity, rng.randint(1, 3), slice(None, None, 3))} It was {verdict}."
        elif kind < 0.87:
            premise, hypothesis = inference(rng, rng.choice(("entailment", "contradiction", "neutral")))
            yield f"{premise} {hypothesis} {rng.choice(('Yes', 'No', 'Maybe'))}."
        else:
            text, question, answer = passage(rng)
            yield f"Title: A_day\nContext: {text}\nQuestion: {question}\nAnswer: {answer}\n"


def _sst2(rng: random.Random) -> Row:
    label = rng.randrange(2)
    return {"sentence": review(rng, label, rng.randint(1, 3)) + " ", "label": label}


def _sst5(rng: random.Random) -> Row:
    label = rng.randrange(5)
    praise = (0, 1, 2, 3, 4)[label]
    parts = [clause(rng, int(i < praise)) for i in range(4)]
    rng.shuffle(parts)
    return {"text": " , ".join(parts) + " .", "label": label}


def _nli(names: tuple[str, ...]) -> Callable[[random.Random], Row]:
    def make(rng: random.Random) -> Row:
        label = rng.randrange(len(names))
        name = names[label] if names[label] != "not_entailment" else rng.choice(("contradiction", "neutral"))
        premise, hypothesis = inference(rng, name)
        return {"premise": premise, "hypothesis": hypothesis, "label": label}

    return make


def _trec(rng: random.Random) -> Row:
    questions = (
        "What does the name {w} stand for ?",
        "What thing does {w} have ?",
        "What is a {w} ?",
        "Who is {w} ?",
        "Where is {w} ?",
        "How many books does {w} have ?",
    )
    label = rng.randrange(6)
    return {"text": questions[label].format(w=rng.choice(THINGS if label == 2 else PEOPLE)), "coarse_label": label}


def _boolq(rng: random.Random) -> Row:
    text, question, answer = passage(rng)
    who = question.split()[2]
    label = rng.randrange(2)
    place = answer if label else f"the {rng.choice([p for p in PLACES if p not in answer])}"
    return {"question": f"did {who} go to {place}", "passage": f"A day -- {text}", "label": label}


def _wsc(rng: random.Random) -> Row:
    one, other = rng.sample(PEOPLE, 2)
    label = rng.randrange(2)
    text = f"{one} thanked {other} because she had brought the {rng.choice(THINGS)} ."
    return {"text": text, "span1_text": other if label else one, "span2_text": "she", "label": label}


def _wic(rng: random.Random) -> Row:
    label = rng.randrange(2)
    senses = (f"The lamp gives {rng.choice(COLOURS)} light.", f"{rng.choice(PEOPLE)} carried a light box.")
    return {"word": "light", "sentence1": senses[0], "sentence2": senses[1 - label], "label": label}


def _copa(rng: random.Random) -> Row:
    (cause, effect), (other, wrong) = rng.sample(ACCIDENTS, 2)
    who, question, label = rng.choice(PEOPLE), rng.choice(("cause", "effect")), rng.randrange(2)
    premise, right, false = (cause, effect, wrong) if question == "effect" else (effect, cause, other)
    texts = {
        "effect": (f"{who} {premise}.", right, false),
        "cause": (f"The {premise.removeprefix('the ')}.", right, false),
    }
    first, good, bad = texts[question]
    good, bad = (f"{g[:1].upper()}{g[1:]}." for g in (good, bad))
    choices = (good, bad) if label == 0 else (bad, good)
    return {"premise": first, "choice1": choices[0], "choice2": choices[1], "question": question, "label": label}


def _record(rng: random.Random) -> Row:
    text, question, answer = passage(rng)
    who = question.split()[2]
    people = [word for word in text.split() if word in PEOPLE]
    note = f"{text}\n@highlight\nThree people went out\n@highlight\n{who} came back late"
    answers = [who] + [p for p in people if p != who and f"{p} went to {answer}." in text]
    return {"passage": note, "query": f"In the end @placeholder saw {answer}.", "entities": people, "answers": answers}


def _squad(rng: random.Random) -> Row:
    text, question, answer = passage(rng)
    answers = {"text": [answer, answer.removeprefix("the ")], "answer_start": [text.index(answer)] * 2}
    return {
        "id": f"{rng.getrandbits(32):08x}",
        "title": "A_day",
        "context": text,
        "question": question,
        "answers": answers,
    }


MAKERS: dict[str, Callable[[random.Random], Row]] = {
    "sst2": _sst2,
    "sst5": _sst5,
    "snli": _nli(("entailment", "neutral", "contradiction")),
    "mnli": _nli(("entailment", "neutral", "contradiction")),
    "rte": _nli(("entailment", "not_entailment")),
    "trec": _trec,
    "cb": _nli(("entailment", "contradiction", "neutral")),
    "boolq": _boolq,
    "wsc": _wsc,
    "wic": _wic,
    "copa": _copa,
    "record": _record,
    "squad": _squad,
}
SIZES = {"train": 400, "validation": 100, "test": 300}


def write_data(folder: Path, seed: int = 0, sizes: dict[str, int] | None = None) -> Path:
    """Write rows of every task as ``TASK/SPLIT.jsonl``; returns the folder.

    Args:
        folder: Made when missing.
        seed: Of the rows.
        sizes: Rows of each split.
    """
    for name, make in MAKERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        seen: set[str] = set()
        for split, count in (sizes or SIZES).items():
            rng = random.Random(f"{name}/{split}/{seed}")
            lines = [_unseen(rng, make, seen) + "\n" for _ in range(count)]
            (folder / name / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def _unseen(rng: random.Random, make: Callable[[random.Random], Row], seen: set[str]) -> str:
    """A row that no split has yet; small tasks run out of them, and then one that was there before."""
    for _ in range(50):
        line = json.dumps(make(rng), ensure_ascii=False)
        if line not in seen:
            break
    seen.add(line)
    return line
