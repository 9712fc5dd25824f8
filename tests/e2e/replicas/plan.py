"""What a run of replicas does, and by whom."""

from __future__ import annotations

from dataclasses import dataclass


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
    kill_every_s: float = 1.2
    leaving_share: float = 0.04  # of the requests: their client leaves in the middle of the reply
    seed: int = 0
    fault: str = ""  # that is planted
    stop_every_s: float = 0.0  # a process stands still; 0: none does
    # how often all are replaced, one by one: by the next release, then by this one again
    rolls: int = 0
    # the store goes away, for one process or all; 0: never. Needs a server of the run's own
    outage_every_s: float = 0.0
    # by how much the clocks of the hosts are wrong, in turn
    clock_offsets_s: tuple[float, ...] = (0.0,)
    lease_s: float = 0.0  # 0: as long as they are
    timeout_s: float = 10.0  # of a statement: patient, since a busy machine is not an outage

    @property
    def has_hosts(self) -> bool:
        """Whether processes start otherwise than `om-proxy` does."""
        return bool(self.fault or self.lease_s or any(self.clock_offsets_s))
