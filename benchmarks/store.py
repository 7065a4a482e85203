"""The store of records: writes and reads."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .common import subject

NUM_RECORDS = 200


class Store:
    """200 records of the size of a scaling cell."""

    warmup_time = 0.0
    rounds = 1
    repeat = (2, 5, 2.0)

    def setup(self) -> None:
        with subject():
            from helene.lab.runs.store import Record, Store, config_key
        self.Store = Store
        self.folder = tempfile.TemporaryDirectory()
        self.records = []
        for i in range(NUM_RECORDS):
            config = {"method": "mezo", "n": i, "w": 4}
            result = {"steps": list(range(40)), "status": "reached"}
            self.records.append(Record(config_key(config), "benchmark", config, result, {}))
        self.full = Path(self.folder.name) / "full.sqlite"
        self.empty = Path(self.folder.name) / "empty.sqlite"
        with Store(self.full) as store:
            for record in self.records:
                store.put(record)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def time_write_200_records(self) -> None:
        with self.Store(self.empty) as store:
            for record in self.records:
                store.put(record)

    def time_read_200_records(self) -> None:
        with self.Store(self.full) as store:
            store.records("benchmark")
