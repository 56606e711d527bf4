"""Fetches the plotting library of the HTML report from npm: the committed copy can be checked and renewed.

    python tools/vendor_assets.py           compare the committed files with the release
    python tools/vendor_assets.py --write   put the release's files in place

Needs npm. The tarball must have the integrity hash below, which is npm's own.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "uplot@1.6.32"
INTEGRITY = "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
FILES = {
    "package/dist/uPlot.iife.min.js": "uplot.min.js",
    "package/dist/uPlot.min.css": "uplot.min.css",
    "package/LICENSE": "uplot.LICENSE",
}
TARGET = Path(__file__).resolve().parents[1] / "fp16conv" / "reporting" / "assets"


def fetch(folder: Path) -> dict[str, bytes]:
    """The files of the release by the name they have here."""
    done = subprocess.run(
        ["npm", "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True, check=True
    )
    archive = folder / done.stdout.strip().splitlines()[-1]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        raise SystemExit(f"{PACKAGE}: the tarball has sha512-{digest}, not {INTEGRITY}")
    found = {}
    with tarfile.open(archive) as tar:
        for name, here in FILES.items():
            member = tar.extractfile(name)
            assert member is not None, name
            found[here] = member.read()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        release = fetch(Path(folder))
    differing = []
    for name, data in release.items():
        path = TARGET / name
        if write:
            path.write_bytes(data)
        elif not path.is_file() or path.read_bytes() != data:
            differing.append(name)
    print(f"{PACKAGE}: " + (f"these differ: {', '.join(differing)}" if differing else "as released"))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
