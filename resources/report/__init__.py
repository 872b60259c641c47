"""A validation report for a person: the same sections as a terminal's lines, a page to mail, or tables of a UI.

Contract: pure; a renderer adds no fact and leaves none out that `sections` gives. Refusals are shown like proofs.
"""

from resources.report.html import page
from resources.report.sections import sections
from resources.report.text import lines
from resources.report.view import Cell, Mark, Plot, Section, Table

__all__ = ["Cell", "Mark", "Plot", "Section", "Table", "lines", "page", "sections"]
