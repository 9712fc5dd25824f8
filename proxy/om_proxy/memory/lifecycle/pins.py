"""Change the notes that a person writes by hand and pins to a log
(docs/contributing/seeing.md#pins).

Pins are no entries: they cover no message, are never condensed, and stay when a client goes back to
an earlier point. They count as a prefix of their own, so each change moves the render date.
"""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.model import Memory, ObservationLog, Pin

MAX_PINS = 50
MAX_PINNED_TOKENS = 4_000  # of all pins of a log together


def find_pin(log: ObservationLog, id_: int) -> Pin | None:
    return next((pin for pin in log.pins if pin.id == id_), None)


def has_room(log: ObservationLog, tokens: int, instead_of: int | None = None) -> bool:
    """Return whether one more pin of so many tokens fits, or fits in place of the pin
    `instead_of`."""
    others = [pin for pin in log.pins if pin.id != instead_of]
    pinned_tokens = sum(pin.tokens for pin in others) + tokens
    return len(others) < MAX_PINS and pinned_tokens <= MAX_PINNED_TOKENS


def add_pin(memory: Memory, text: str, tokens: int, now: float, by: str) -> Memory:
    """Add a pin after the others. `by`: who wrote it."""
    # the version grows with every change, so it is an id that is never used again
    pin = Pin(memory.log.pins_version + 1, text, tokens, now, by)
    return _set_pins(memory, (*memory.log.pins, pin), now)


def change_pin(
    memory: Memory, id_: int, text: str, tokens: int, now: float, by: str
) -> Memory | None:
    """Give a pin another text, in its place. Return None if there is no such pin."""
    before = find_pin(memory.log, id_)
    if before is None or before.text == text:
        return memory if before else None
    changed = Pin(id_, text, tokens, now, by)
    pins = tuple(changed if pin is before else pin for pin in memory.log.pins)
    return _set_pins(memory, pins, now)


def remove_pin(memory: Memory, id_: int, now: float) -> Memory | None:
    """Remove a pin. Return None if there is no such pin."""
    if find_pin(memory.log, id_) is None:
        return None
    return _set_pins(memory, tuple(pin for pin in memory.log.pins if pin.id != id_), now)


def _set_pins(memory: Memory, pins: tuple[Pin, ...], now: float) -> Memory:
    log = replace(memory.log, pins=pins, pins_version=memory.log.pins_version + 1)
    return replace(memory, log=log, render_date=now)


def move_pins(own_log: ObservationLog, shared_log: ObservationLog) -> tuple[ObservationLog, ...]:
    """Move the pins of a thread's own log to the log that it joins, as many as have room there.
    Return both logs."""
    moving: list[Pin] = []
    staying: list[Pin] = []
    for pin in own_log.pins:
        joined = replace(shared_log, pins=(*shared_log.pins, *moving))
        (moving if has_room(joined, pin.tokens) else staying).append(pin)
    if not moving:
        return own_log, shared_log
    version = shared_log.pins_version
    numbered = tuple(
        pin._replace(id=version + number) for number, pin in enumerate(moving, start=1)
    )
    return (
        replace(own_log, pins=tuple(staying), pins_version=own_log.pins_version + 1),
        replace(
            shared_log, pins=(*shared_log.pins, *numbered), pins_version=version + len(numbered)
        ),
    )
