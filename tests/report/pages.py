"""A page in a headless browser: what it says of itself once it is shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

_FRAME = """
<body style="margin:0"><pre id=out></pre>
<iframe id=f style="width:%dpx;height:800px;border:0" srcdoc="%s"></iframe>
<script>
document.getElementById('f').onload = () => {
  const d = document.getElementById('f').contentDocument, w = d.defaultView;
  const said = (() => {%s})();
  document.getElementById('out').textContent = JSON.stringify(said);
};
</script>
"""
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--virtual-time-budget=10000",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere: there is no network
)


def seen(page: str, width: int, probe: str, folder: Path) -> dict[str, Any]:
    """What the body of a function of `d`, the document, and `w`, its window, returns in a frame of
    that width which shows the page."""
    assert BROWSER is not None
    file = folder / "probe.html"
    file.write_text(_FRAME % (width, escape(page), probe), encoding="utf-8")
    done = subprocess.run(
        [BROWSER, *_OPTIONS, f"--user-data-dir={folder}/profile", "--dump-dom", f"file://{file}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r"<pre id=\"out\">(.*?)</pre>", done.stdout, re.DOTALL)
    assert found is not None and found[1], done.stderr[-500:]
    return json.loads(unescape(found[1]))
