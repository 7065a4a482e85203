"""One cell: a config in, a result out."""

from __future__ import annotations

from typing import Any

import numpy as np

from synthetic.estimators import draws, forward_only


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Measure a config of `synthetic.estimators.design`.

    Raises:
        ValueError: If its kind is unknown.
    """
    if config["kind"] == "forward_only":
        return forward_only.measure(config)
    if config["kind"] != "batch":
        raise ValueError(f"kind must be 'batch' or 'forward_only', got {config['kind']!r}")
    from synthetic.estimators.populations import population

    pop = population(config)
    rng = np.random.default_rng([config["seed"], 77])
    by_estimator: dict[str, list[dict[str, Any]]] = {name: [] for name in draws.ESTIMATORS}
    law = []
    for batch in config["batches"]:
        drawn, means = draws.estimates(pop, batch, config["replicates"], rng), draws.expected(pop, batch)
        for name in draws.ESTIMATORS:
            by_estimator[name].append(draws.summary(drawn[name], pop.hessian, means[name], config["groups"]))
        law.append(draws.distance_from_law(pop, drawn["returned"], batch))
    total = float(np.abs(pop.hessian).sum())
    return {
        "status": "reached",
        "dimension": pop.dimension,
        "coordinates": len(pop.hessian),
        "law_distance": law,
        "share_negative": float((pop.hessian < -draws.NEGLIGIBLE * pop.hessian.max()).mean()),
        "mean_squared_over_hessian": draws.short((pop.mean**2).sum() / total),
        "squares_over_hessian": draws.short(pop.squares.sum() / total),
        "estimators": by_estimator,
    }
