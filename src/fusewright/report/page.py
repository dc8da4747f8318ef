"""What every page has: its colours, its shape on wide and narrow screens, and the script that
lights up what belongs together. Nothing is fetched."""

from __future__ import annotations

from fusewright.report.flow import FLOW_STYLE
from fusewright.report.svg import SVG_STYLE

STYLE = (
    """
:root { color-scheme: light dark; --page: #fcfcfb; --text: #222; --quiet: #666; --rule: #d8d8d4;
  --panel: #f3f3f1; --lit: #ffe48a; --made: #ffc94d; --sync-line: #ffe0dc; --new: #dff3dc;
  --gone: #fadfdc; --alarm: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --text: #e4e4e0; --quiet: #a0a4a8;
  --rule: #3a3d42; --panel: #202327; --lit: #5a4a12; --made: #8a6a10; --sync-line: #4d2320;
  --new: #1d3b22; --gone: #47211f; --alarm: #ff8a80; } }
* { box-sizing: border-box; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 82em;
  padding: .5em 1em 4em; color: var(--text); background: var(--page); }
h1 { font-size: 1.5em; margin: .6em 0 .3em; overflow-wrap: anywhere; }
h2 { font-size: 1.2em; border-bottom: 1px solid var(--rule); padding-bottom: .2em;
  margin: 2em 0 .6em; overflow-wrap: anywhere; }
h3 { font-size: 1em; margin: 1.4em 0 .4em; }
nav { display: flex; flex-wrap: wrap; gap: .2em 1em; font-size: .93em; }
nav a { color: inherit; } p { max-width: 60em; margin: .4em 0; } .quiet { color: var(--quiet); }
.numbers { display: flex; flex-wrap: wrap; gap: .5em; margin: .8em 0; }
.numbers div { background: var(--panel); border-radius: 6px; padding: .4em .9em; }
.numbers b { display: block; font-size: 1.1em; font-weight: 600; }
.numbers span { color: var(--quiet); font-size: .86em; }
.alarm { color: var(--alarm); font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .93em; }
th, td { text-align: left; vertical-align: top; padding: .25em 1em .25em 0; }
th { border-bottom: 1px solid var(--quiet); } td { border-bottom: 1px solid var(--rule); }
td { white-space: pre; } td.text { white-space: pre-line; min-width: 18em; max-width: 34em; }
pre { background: var(--panel); padding: .7em .9em; margin: .3em 0; overflow: auto;
  max-height: 34em; font: 12px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  border-radius: 6px; }
pre span { display: block; min-height: 1.45em; } pre .n { display: inline; color: var(--quiet);
  user-select: none; }
.picture { overflow-x: auto; } summary { cursor: pointer; font-weight: 600; padding: .3em 0; }
.steps summary { font-weight: 400; } .steps code { font-weight: 600; }
.sync-line { background: var(--sync-line); } .new { background: var(--new); }
.gone { background: var(--gone); }
[data-t] { cursor: pointer; } .lit { background: var(--lit); } .made { background: var(--made); }
svg .lit rect, svg rect.lit { fill: var(--lit); stroke: var(--made); stroke-width: 2.4; }
svg path.lit { stroke: var(--made); stroke-width: 2.4; }
.graph { display: flex; flex-wrap: wrap; gap: 0 1em; } .graph > * { min-width: 0; max-width: 100%; }
.graph > .picture { flex: 0 1 auto; } .graph > :not(.picture) { flex: 1 1 28em; }
.panes { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30em), 1fr));
  gap: 0 1em; } .panes > * { min-width: 0; }
@media (max-width: 40em) { body { padding: .3em .6em 3em; } pre { max-height: 26em; } }
"""
    + SVG_STYLE
    + FLOW_STYLE
)

SCRIPT = """
(() => {
  const marked = (t) => document.querySelectorAll(`[data-t~="${CSS.escape(t)}"]`);
  let lit = [], pinned = null;
  const clear = () => { for (const e of lit) e.classList.remove('lit', 'made'); lit = []; };
  const show = (e) => {
    clear();
    for (const t of e.dataset.t.split(' ')) for (const o of marked(t)) {
      o.classList.add('lit');
      if (o.dataset.d === t) o.classList.add('made');
      lit.push(o);
    }
  };
  const bring = (from) => {
    const maker = lit.find((o) => o.matches('svg g') && !o.querySelector('.name'));
    if (from.querySelector('rect.name') && maker)
      maker.scrollIntoView({ block: 'center', inline: 'center' });
    const seen = new Set([from.closest('pre')]);
    for (const kind of ['made', 'lit']) for (const o of lit) {
      const pre = o.closest('pre');
      if (!pre || seen.has(pre) || !o.classList.contains(kind)) continue;
      seen.add(pre);
      pre.scrollTop += o.getBoundingClientRect().top - pre.getBoundingClientRect().top - 40;
    }
  };
  const over = (ev) => {
    if (pinned) return;
    const e = ev.target.closest('[data-t]');
    if (e) show(e); else clear();
  };
  document.addEventListener('mouseover', over);
  document.addEventListener('click', (ev) => {
    const e = ev.target.closest('[data-t]');
    pinned = e && e !== pinned ? e : null;
    if (pinned) { show(pinned); bring(pinned); } else clear();
  });
})();
"""
