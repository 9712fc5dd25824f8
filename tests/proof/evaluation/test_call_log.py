"""The log keeps each call, whatever ends the process that writes it."""

import gzip

import pytest

from om_proxy.common.errors import UsageError
from om_proxy.proof.evaluation.call_log import (
    CallKey,
    CallLog,
    CallRecord,
    hash_body,
    read_records,
)


def make_record(number: int) -> CallRecord:
    body = {"messages": [{"role": "user", "content": f"question {number}"}]}
    answer = {
        "choices": [{"message": {"content": f"reply {number}"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3},
    }
    key = CallKey("actor:om", str(number), 1, hash_body(body))
    return CallRecord(key, "m", body, answer, 0.25, 1)


def test_calls_are_read_as_they_were_written(tmp_path):
    log = CallLog(tmp_path)
    records = [make_record(number) for number in range(3)]
    for record in records:
        log.append(record)
    assert list(CallLog(tmp_path)) == records
    assert records[0].text == "reply 0"
    assert (records[0].input_tokens, records[0].output_tokens) == (10, 3)


def test_a_log_that_was_cut_anywhere_in_its_last_call_keeps_the_others(tmp_path):
    log = CallLog(tmp_path)
    log.append(make_record(0))
    (path,) = tmp_path.glob("calls-*")
    whole = path.stat().st_size
    log.append(make_record(1))
    data = path.read_bytes()
    for end in range(whole, len(data)):
        path.write_bytes(data[:end])
        again = CallLog(tmp_path)
        assert list(again) == [make_record(0)], end
        again.append(make_record(2))
        assert list(again) == [make_record(0), make_record(2)], end


def test_a_damaged_log_is_named(tmp_path):
    CallLog(tmp_path).append(make_record(0))
    (path,) = tmp_path.glob("calls-*")
    data = path.read_bytes()
    path.write_bytes(data + gzip.compress(b"no json\n"))
    with pytest.raises(UsageError, match=r"calls-0001\.jsonl\.gz, line 2, is no record"):
        list(read_records(tmp_path))
    path.write_bytes(data[:-3])
    with pytest.raises(UsageError, match="is damaged"):
        list(read_records(tmp_path))


def test_a_large_log_goes_on_in_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr("om_proxy.proof.evaluation.call_log.MAX_FILE_BYTES", 1)
    log = CallLog(tmp_path)
    for number in range(3):
        log.append(make_record(number))
    assert len(list(tmp_path.glob("calls-*"))) == 3
    assert [record.key.case for record in CallLog(tmp_path)] == ["0", "1", "2"]


def test_the_order_of_keys_makes_no_other_call():
    assert hash_body({"a": 1, "b": 2}) == hash_body({"b": 2, "a": 1})
    assert hash_body({"a": 1}) != hash_body({"a": 2})
