"""The run that all reports are about."""

import json

import pytest

from helpers.reported import NUMBERS, PART, PROTOCOL, write_part
from vitrail.bench import Store
from vitrail.bench.protocol_json import to_dict
from vitrail.bench.report import Result


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = Store(str(tmp_path_factory.mktemp("reports") / "run"))
    write_part(found, PART, NUMBERS)
    found.note("protocol.json", json.dumps(to_dict(PROTOCOL)))
    found.note("command.txt", "vitrail bench tis/table1 --out run\nvitrail bench tis/table1 --limit 9\n")
    return found


@pytest.fixture(scope="module")
def result(store: Store) -> Result:
    return Result.of(store)
