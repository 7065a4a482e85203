"""A method has one colour in the whole project."""

from __future__ import annotations

from helene.lab.report.drawing import PALETTE
from helene.lab.report.method_colours import PLACES, places_of


def test_a_method_keeps_its_place_whatever_stands_beside_it():
    assert places_of(["helene"]) == {"helene": PLACES["helene"]}
    assert places_of(["per_layer", "helene", "mezo"]) == {
        name: PLACES[name] for name in ("per_layer", "helene", "mezo")
    }


def test_others_take_what_is_free_and_never_what_is_mezos_or_helenes():
    found = places_of(["a", "zo-sgd-mmt", *"bcdefgh"])
    others = [place for name, place in found.items() if name != "zo-sgd-mmt"]
    assert others == [3, 4, 5, 6, 7, 3, 4, 5]
    assert set(others) == set(range(len(PALETTE))) - {PLACES[name] for name in ("mezo", "helene", "zo-sgd-mmt")}
