"""The errors of the store; a message says what was seen, what was expected and what to do."""

from __future__ import annotations


class StoreError(Exception):
    """The lake cannot take or give what was asked; says what was seen, what was expected and what to do."""


class LineageError(Exception):
    """Vectors that do not add up to what was asked. `clause` is a stable short code of what was broken."""

    def __init__(self, clause: str, *, seen: object, expected: object, advice: str) -> None:
        super().__init__(f"lineage clause '{clause}': saw {seen}; expected {expected}; {advice}")
        self.clause, self.seen, self.expected, self.advice = clause, str(seen), str(expected), advice
