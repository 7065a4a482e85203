"""Rows of the tables that no step is made for."""

from __future__ import annotations

from typing import Any

from llm_bench.evaluation import metrics
from llm_bench.evaluation.evaluate import Evaluation, evaluate, score
from llm_bench.evaluation.in_context import encode_in_context
from llm_bench.evaluation.probing import features, fit_offsets, linear_probe, with_offsets
from llm_bench.runs.config import RunConfig
from llm_bench.runs.session import Session
from llm_bench.tasks import get_task


def unsupported(config: RunConfig) -> str | None:
    """Why a method cannot be had for a task, or None."""
    task = get_task(config.task, config.kind)
    if config.method == "icl" and task.kind == "masked":
        return "in-context learning is for causal models"
    if config.method in ("linear-probe", "bias-only") and not task.classes:
        return f"{config.task} has no classes that are the same for all rows"
    return None


def evaluated(config: RunConfig, session: Session) -> tuple[Evaluation, dict[str, Any]]:
    """The test set as such a method sees it, and what there is to say of it."""
    tokens = session.tokens(config)
    task, split = tokens.task, tokens.split
    session.reset(config.seed)
    if config.method == "icl":
        shown = encode_in_context(session.model, task, split.train, split.test, config.data_seed)
        return evaluate(session.model, task, shown), {"share_cut": sum(e.cut > 0 for e in shown) / len(shown)}
    test = session.test_tokens(config)
    if config.method == "zero-shot":
        return evaluate(session.model, task, test), {}
    train = session.encoded(task, split.train)
    gold = [example.gold for example in train]
    if config.method == "bias-only":
        offsets = fit_offsets(score(session.model, train).means, gold)
        moved = with_offsets(score(session.model, test).means, offsets)
        return _reported(moved, [e.gold for e in test]), {"offsets": offsets.tolist()}
    tables = [features(session.model, examples) for examples in (train, tokens.dev, test)]
    dev_gold = [e.gold for e in tokens.dev]
    scores, chosen = linear_probe((tables[0], gold), (tables[1], dev_gold), tables[2], len(task.classes))
    return _reported(scores, [e.gold for e in test]), chosen


def _reported(scores: Any, gold: Any) -> Evaluation:
    loss = metrics.option_loss(scores, gold)
    return Evaluation(metrics.accuracy(scores, gold), loss, loss, metrics.auc(scores, gold), len(gold), scores)
