"""The messages of the gRPC protocol are those of the real client: names, numbers and types of every field."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")

from timerwheel.rocketmq.grpc import schema
from timerwheel.rocketmq.grpc.schema import MESSAGES, message_class

REAL = """
import json
from rocketmq.grpc_protocol import definition_pb2, service_pb2

def fields(message):
    return {
        field.name: [
            field.number, field.type, field.is_repeated, field.has_presence,
            (field.message_type or field.enum_type).name if field.message_type or field.enum_type else None,
            field.containing_oneof.name if field.containing_oneof else None,
        ]
        for field in message.fields
    }

files = definition_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR
print(json.dumps({
    "messages": {name: fields(one) for file in files for name, one in file.message_types_by_name.items()},
    "enums": {
        name: {value.name: value.number for value in one.values}
        for file in files for name, one in file.enum_types_by_name.items()
    },
    "calls": [one.name for one in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods],
}))
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("elsewhere")  # the repository's folder `rocketmq` is not the client's
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env={**kept, "HOME": str(folder)},
    )
    if "No module named 'rocketmq" in done.stderr:
        pytest.skip("needs rocketmq-python-client")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_the_fields_of_the_real_one(real, name):
    for field in message_class(name).DESCRIPTOR.fields:
        kind = field.message_type or field.enum_type
        group = field.containing_oneof
        assert [
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            kind.name if kind else None,
            group.name if group else None,
        ] == real["messages"][name][field.name], field.name


@pytest.mark.parametrize("name", schema.ENUMS)
def test_an_enumeration_has_the_numbers_of_the_real_one(real, name):
    values = {one.name: one.value for one in schema.ENUMS[name]}
    assert values.items() <= real["enums"][name].items()


def test_the_calls_are_those_of_the_real_service(real):
    requests = {name.removesuffix("Request") for name in MESSAGES if name.endswith("Request")}
    assert requests | {"Telemetry"} <= set(real["calls"])


def test_a_field_that_is_not_known_here_is_kept():
    later = b"\xfa\x3f\x03abc"  # field 1023, text
    message = message_class("Settings").FromString(later)
    assert message.SerializeToString() == later
