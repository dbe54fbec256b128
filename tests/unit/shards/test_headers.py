from multidict import CIMultiDict

from timerwheel.shards.forwarder import headers_for_client, headers_for_shard

NAMED = [("Connection", "close, X-One"), ("Connection", "X-Two")]
GIVEN = CIMultiDict([*NAMED, ("X-One", "1"), ("X-Two", "2"), ("X-Three", "3")])


def test_headers_that_any_connection_header_names_end_at_the_node():
    assert dict(headers_for_shard(GIVEN)) == {"X-Three": "3"}
    assert dict(headers_for_client(GIVEN)) == {"X-Three": "3"}
    assert dict(headers_for_shard(CIMultiDict({"X-One": "1"}))) == {"X-One": "1"}
