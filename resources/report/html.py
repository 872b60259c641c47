"""A validation report as one HTML page: self-contained, without script, for screens light or dark and for paper."""

from __future__ import annotations

from datetime import datetime
from html import escape

from resources.proof.validation import ValidationReport
from resources.report.overview import facts
from resources.report.sections import sections
from resources.report.view import Cell, Plot, Section, Table


def page(report: ValidationReport, *, validated_at: datetime) -> str:
    """The whole document; its bytes in UTF-8 are the file to keep or to mail."""
    parts = sections(report)
    links = "".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(report.verdict)}: engine {report.engine_id[:16]}</title>
<style>{_STYLE}</style>
</head>
<body>
<header class="{escape(report.verdict)}">
<p class="kind">Validation of engine <code>{report.engine_id[:16]}</code>, {validated_at:%d %B %Y, %H:%M %Z}</p>
<h1>{escape(report.verdict.capitalize())}</h1>
<p class="sentence">{escape(report.sentence)}</p>
<dl>{"".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in facts(report))}</dl>
</header>
<nav>{links}</nav>
<main>
{"".join(_section(s) for s in parts)}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2><p>{escape(section.lead)}</p>'
        f"{''.join(_figure(p) for p in section.plots)}{''.join(_table(t) for t in section.tables)}</section>\n"
    )


def _figure(plot: Plot) -> str:
    return f"<figure>{plot.svg}<figcaption>{escape(plot.caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    heads = "".join(f"<th>{escape(c)}</th>" for c in table.columns)
    head = f"<thead><tr>{heads}</tr></thead>" if any(table.columns) else ""
    body = "".join(
        "<tr>" + "".join(_cell(c, code=i in table.code) for i, c in enumerate(cells)) + "</tr>" for cells in table.rows
    )
    kind = ' class="pairs"' if len(table.columns) == 2 else ""
    return f'<div class="table"><table{kind}>{caption}{head}<tbody>{body}</tbody></table></div>'


def _cell(cell: Cell, *, code: bool) -> str:
    classes = " ".join(filter(None, (cell.mark.value if cell.mark else "", "code" if code else "")))
    bar = f'<i class="bar" style="width:{6 * cell.share:.2f}em"></i>' if cell.share is not None else ""
    attribute = f' class="{classes}"' if classes else ""
    return f"<td{attribute}>{bar}{escape(cell.text)}</td>"


_STYLE = """
:root { --ink:#1d2129; --soft:#565d69; --quiet:#7b828d; --line:#dfe3e8; --paper:#ffffff; --ground:#f4f5f7;
  --good:#1a7f4b; --bad:#c0392b; --accent:#2456c8; --good-soft:#e3f4ea; --bad-soft:#fbe6e3; --accent-soft:#e6edfb; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e8ec; --soft:#aab1bc; --quiet:#8b929d; --line:#333942;
  --paper:#1b1f26; --ground:#12151a; --good:#4cc38a; --bad:#ff7b6b; --accent:#82aaff; --good-soft:#15301f;
  --bad-soft:#3b1b18; --accent-soft:#1b2a4a; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--ground); color:var(--ink); font:15px/1.55 system-ui, "Segoe UI", sans-serif; }
header, nav, main { max-width:62rem; margin:0 auto; padding:0 1.5rem; }
header { width:min(59rem, 100% - 3rem); margin-top:2rem; padding:1.6rem; border-radius:10px; background:var(--paper);
  border:1px solid var(--line); border-left:8px solid var(--quiet); }
header.proved { border-left-color:var(--good); } header.refused { border-left-color:var(--bad); }
header.proved h1 { color:var(--good); } header.refused h1 { color:var(--bad); }
h1 { margin:.1rem 0 .3rem; font-size:2.1rem; line-height:1.15; letter-spacing:-.01em; }
h2 { margin:0 0 .4rem; font-size:1.25rem; }
.kind { margin:0; color:var(--soft); } .sentence { margin:0 0 1rem; font-size:1.08rem; }
dl { display:grid; grid-template-columns:max-content 1fr; gap:.2rem 1.2rem; margin:0; }
dt { color:var(--soft); } dd { margin:0; overflow-wrap:anywhere; }
nav { display:flex; flex-wrap:wrap; gap:.3rem 1.1rem; margin-top:1.1rem; }
nav a { color:var(--accent); text-decoration:none; } nav a:hover { text-decoration:underline; }
section { margin:1.1rem 0; padding:1.3rem 1.6rem; border-radius:10px; background:var(--paper);
  border:1px solid var(--line); }
section > p { margin:.1rem 0 .9rem; color:var(--soft); max-width:52rem; }
.table { overflow-x:auto; margin:.8rem 0; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
caption { text-align:left; font-weight:600; padding:.3rem 0; }
th { text-align:left; font-weight:600; color:var(--soft); font-size:.86rem; vertical-align:bottom; }
th, td { padding:.3rem .7rem .3rem 0; border-bottom:1px solid var(--line); vertical-align:top; }
tbody tr:last-child td { border-bottom:0; }
.pairs td:first-child { width:14rem; }
code, td.code { font-family:ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size:.92em;
  overflow-wrap:anywhere; }
td.good { color:var(--good); font-weight:600; } td.bad { color:var(--bad); font-weight:600; }
td.good, td.bad, td.quiet, td.chosen { white-space:nowrap; }
td.quiet { color:var(--quiet); } td.chosen { color:var(--accent); font-weight:700; }
.good::before { content:"✓ "; } .bad::before { content:"✗ "; }
.bar { display:inline-block; height:.65em; margin-right:.5em; border-radius:2px; background:var(--accent); }
figure { margin:1rem 0; } figure svg { max-width:100%; height:auto; display:block; }
figcaption { color:var(--soft); font-size:.9rem; margin-top:.3rem; }
@media print { body { background:#fff; font-size:10.5pt; } nav { display:none; }
  header, section { border:0; border-radius:0; padding:.4rem 0; margin:.4rem 0; }
  header, main { width:auto; max-width:none; padding:0; } tr, figure { break-inside:avoid; } h2 { break-after:avoid; }
  td, th { print-color-adjust:exact; } }
"""
