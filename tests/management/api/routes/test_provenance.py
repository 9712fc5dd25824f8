"""From a note to its messages and back, over the API."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.running import run_with_scripted_models
from tests.management.api.test_admin_api import ask


async def test_from_messages_to_notes_and_back(tmp_path: Path) -> None:
    """Each live message that is covered is in exactly one active entry, whose messages hold it."""
    async with run_with_scripted_models(tmp_path) as run:
        talk = run.chat("crates")
        for number in range(12):
            await talk.say(f"Crate {number} weighs {number} kg. " + "It is blue. " * 100)
        messages = (await ask(run, "GET", "/threads/crates/messages?excerpt=true")).json()["items"]
        covered = {m["seq"]: m["entry"] for m in messages if m["entry"] is not None}
        assert len(covered) > 2
        behind: dict[int, list[int]] = {}
        for entry in dict.fromkeys(covered.values()):
            path = f"/threads/crates/observations/{entry}/messages?excerpt=true&limit=2"
            cursor, seqs = "", []
            while cursor is not None:
                page = (await ask(run, "GET", f"{path}&cursor={cursor}")).json()
                seqs += [m["seq"] for m in page["items"]]
                cursor = page["cursor"]
            assert page["covers"] == [{"first": seqs[0], "last": seqs[-1]}]
            behind[entry] = seqs
        for message in messages:
            seq = message["seq"]
            shown = (await ask(run, "GET", f"/threads/crates/messages/{seq}")).json()
            assert shown["message"]["seq"] == seq
            noted_in = [entry["id"] for entry in shown["noted_in"]]
            if shown["message"]["state"] == "observed":
                assert noted_in == [entry for entry, seqs in behind.items() if seq in seqs]
            else:  # what is made ahead may have become a chunk meanwhile
                assert noted_in == [id_ for id_ in [shown["message"]["chunk"]] if id_]
        gone = await ask(run, "GET", "/threads/crates/messages/9000")
        assert gone.status_code == 404
        assert "there is no message 9000" in gone.json()["error"]["message"]
        assert (await ask(run, "GET", "/threads/crates/messages/m1")).status_code == 404
