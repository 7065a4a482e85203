import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for llm_families
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that reached for the network would only fail elsewhere
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a fork hangs where OpenMP has had threads


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(str(item.fspath)).parents:
            item.add_marker(pytest.mark.llm)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing is taken from, or left in, the cache of whoever runs the tests."""
    before = os.environ.get("HELENE_CACHE")
    os.environ["HELENE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["HELENE_CACHE"]
    else:
        os.environ["HELENE_CACHE"] = before


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """Every run ends in a collection, which walks through all that is alive: not through what a module starts with."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory):
    """A data folder with rows of every task, from the project's own grammar."""
    from llm_bench.tiny.grammar import write_data

    return write_data(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def sample_data(toy_data):
    """Real rows where the environment names a folder of them, else generated ones."""
    named = os.environ.get("HELENE_SAMPLE_DATA")
    return Path(named) if named else toy_data


@pytest.fixture(scope="module")
def env(toy_data, tmp_path_factory):
    """An environment with a tiny random model of each kind."""
    from small_runs import random_models

    from llm_bench.runs.environment import environment
    from llm_bench.runs.session import close_sessions

    yield environment(toy_data, models=random_models(tmp_path_factory.mktemp("models")), pretrained=False)
    close_sessions()
