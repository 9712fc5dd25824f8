"""What a run of replicas does, and by whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

ClientKind = Literal["full", "thin", "window", "paired", "sharing", "meeting"]
# of the clients, in turn
KINDS: tuple[ClientKind, ...] = ("full", "thin", "window", "paired", "paired", "sharing", "sharing")
# by how much the clocks of three hosts are wrong
WRONG_CLOCKS_S = (-600.0, 0.0, 600.0)


@dataclass(frozen=True)
class Plan:
    """It goes on until `seconds`, `kills` and `turns` are reached. Times are averages."""

    seconds: float = 40.0
    kills: int = 15
    turns: int = 1  # acknowledged
    replicas: int = 3
    # processes that do the background work; with any, the replicas only serve
    workers: int = 0
    clients: int = 10
    kinds: tuple[ClientKind, ...] = KINDS  # of the clients, in turn
    kill_every_s: float = 1.2
    leaving_share: float = 0.04  # of the requests: their client leaves in the middle of the reply
    seed: int = 0
    fault: str = ""  # that is planted
    stop_every_s: float = 0.0  # a process stands still; 0: none does
    # how often all are replaced, one by one: by the next release, then by this one again
    rolls: int = 0
    disturb_every_s: float = 0.0  # the way of one process to the store; 0: none is disturbed
    # the store ends and comes back; 0: never. Needs a server of the run's own
    restart_every_s: float = 0.0
    # Copy the store once, and later take it back to the copy: before each so many turns are
    # acknowledged; 0: never. Needs a server of the run's own
    turns_before_restore: int = 0
    shared_commit_s: float = 0.0  # how long the server takes to commit a turn that shares a log
    # by how much the clocks of the hosts are wrong, in turn
    clock_offsets_s: tuple[float, ...] = (0.0,)
    lease_s: float = 0.0  # 0: as long as they are
    timeout_s: float = 10.0  # of a statement: patient, since a busy machine is not an outage

    @property
    def has_hosts(self) -> bool:
        """Whether processes start otherwise than `om-proxy` does."""
        return bool(self.fault or self.lease_s or any(self.clock_offsets_s))

    @property
    def has_ways(self) -> bool:
        """Whether each process has a way of its own to the store."""
        return bool(self.disturb_every_s)

    @property
    def needs_server(self) -> bool:
        """Whether the store is a server of the run's own."""
        return bool(self.restart_every_s or self.turns_before_restore)

    def __str__(self) -> str:
        told = {
            "seconds": f"{self.seconds:g}",
            "processes": f"{self.replicas} replicas, {self.workers} workers",
            "clients": f"{self.clients}",
            "SIGKILL": _tell_interval(self.kill_every_s if self.kills else 0),
            "SIGSTOP": _tell_interval(self.stop_every_s),
            "a way disturbed": _tell_interval(self.disturb_every_s),
            "the server ended": _tell_interval(self.restart_every_s),
            "a restore": (
                f"after {self.turns_before_restore} turns, and as many more since the copy"
                if self.turns_before_restore
                else "never"
            ),
            "clocks": " ".join(f"{offset_s:+g} s" for offset_s in self.clock_offsets_s),
            "leases": f"{self.lease_s:g} s" if self.lease_s else "as long as they are",
            "planted": self.fault or "nothing",
        }
        return "\n".join(f"{name:<20}{value}" for name, value in told.items())


def _tell_interval(seconds: float) -> str:
    return f"every {seconds:g} s on average" if seconds else "never"


def plan_everything(seconds: float) -> Plan:
    """Plan what docs/contributing/storage.md promises of several processes. Leases are short, so
    that a process can stand still for longer than one."""
    return Plan(
        seconds,
        1,
        replicas=3,
        workers=2,
        clients=14,
        kill_every_s=20.0,
        stop_every_s=120.0,
        disturb_every_s=60.0,
        restart_every_s=300.0,
        clock_offsets_s=WRONG_CLOCKS_S,
        lease_s=10.0,
        timeout_s=3.0,
    )


def plan_harder(seconds: float) -> Plan:
    """Plan the same with a fault every 11 seconds."""
    return replace(
        plan_everything(seconds), stop_every_s=60.0, disturb_every_s=33.0, restart_every_s=50.0
    )


def plan_kills(seconds: float) -> Plan:
    """Plan kills alone, one after the other."""
    return Plan(seconds)


def plan_meetings(seconds: float) -> Plan:
    """Plan that two turns of a resource always end at once, on a server that commits slowly. Only a
    worker looks for work: a process that serves looks after each reply, due or not."""
    return Plan(
        seconds,
        kills=0,
        turns=80,
        replicas=2,
        workers=1,
        clients=8,
        kinds=("meeting",),
        leaving_share=0.0,
        shared_commit_s=0.3,
    )


def plan_restore(seconds: float) -> Plan:
    """Plan that the store is taken back to a copy while processes hold what was said since. A state
    that a process holds passes for the newest once the thread is as long again: of each thread that
    takes some luck, so there are many."""
    return Plan(
        seconds,
        kills=0,
        turns=130,
        replicas=2,
        clients=20,
        kinds=("thin",),
        turns_before_restore=30,
    )


SCHEDULES = {
    "everything": plan_everything,
    "harder": plan_harder,
    "kills": plan_kills,
    "meetings": plan_meetings,
    "restore": plan_restore,
}
