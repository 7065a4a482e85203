"""Make the site of `asv publish` work without network: its scripts, from npm packages, beside it.

asv publish && python tools/vendor_site.py && asv preview
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# file name in the site's index page -> (npm package, version, path in the package)
FILES = {
    "jquery-3.3.1.min.js": ("jquery", "3.3.1", "dist/jquery.min.js"),
    "jquery.flot.min.js": ("flot", "0.8.3", "jquery.flot.js"),
    "jquery.flot.time.min.js": ("flot", "0.8.3", "jquery.flot.time.js"),
    "jquery.flot.selection.min.js": ("flot", "0.8.3", "jquery.flot.selection.js"),
    "jquery.flot.categories.min.js": ("flot", "0.8.3", "jquery.flot.categories.js"),
    "jquery.flot.orderBars.js": ("flot-orderbars", "1.0.0", "js/jquery.flot.orderBars.js"),
    "stupidtable.min.js": ("stupid-table-plugin", "1.1.3", "stupidtable.min.js"),
    "md5.min.js": ("blueimp-md5", "2.19.0", "js/md5.min.js"),
    "bootstrap.min.js": ("bootstrap", "3.1.1", "dist/js/bootstrap.min.js"),
    "bootstrap.min.css": ("bootstrap", "3.1.1", "dist/css/bootstrap.min.css"),
}


def unpack(package: str, version: str, folder: Path) -> Path:
    """Folder of an npm package's files."""
    target = folder / package
    if not target.exists():
        listing = subprocess.run(
            ["npm", "pack", f"{package}@{version}", "--json", "--pack-destination", str(folder)],
            capture_output=True,
            check=True,
            text=True,
        )
        with tarfile.open(folder / json.loads(listing.stdout)[0]["filename"]) as archive:
            archive.extractall(target, filter="data")
    return target / "package"


def main() -> int:
    """Copy the scripts into the site and point its index page at them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--html", type=Path, default=Path(".asv/html"), help="what `asv publish` wrote")
    site = parser.parse_args().html
    index = site / "index.html"
    if not index.exists():
        print(f"{index} does not exist; run `asv publish` first", file=sys.stderr)
        return 2
    if shutil.which("npm") is None:
        print(
            "npm is needed to fetch the site's scripts; install Node.js, or read the results with `asv show`",
            file=sys.stderr,
        )
        return 2
    vendor = site / "vendor"
    vendor.mkdir(exist_ok=True)
    page = index.read_text()
    with tempfile.TemporaryDirectory() as scratch:
        for found in re.finditer(r"<(?:script|link)[^>]*?(https?://[^\"'>]+)[^>]*>", page):
            tag, url = found.group(0), found.group(1)
            name = url.rsplit("/", 1)[1]
            if name not in FILES:
                print(f"the site asks for {name}, which FILES does not list; add its npm package", file=sys.stderr)
                return 1
            package, version, path = FILES[name]
            shutil.copy(unpack(package, version, Path(scratch)) / path, vendor / name)
            local = re.sub(r"\s*(integrity|crossorigin)=(\"[^\"]*\"|'[^']*')", "", tag.replace(url, f"vendor/{name}"))
            page = page.replace(tag, re.sub(r"\s+crossorigin(?=[\s>])", "", local))
        fonts = unpack("bootstrap", "3.1.1", Path(scratch)) / "dist/fonts"
        shutil.copytree(fonts, site / "fonts", dirs_exist_ok=True)
    index.write_text(page)
    left = re.findall(r"(?:src|href)=[\"']https?://[^\"']+", page)
    print(f"{len(list(vendor.iterdir()))} files in {vendor}; external references left: {len(left)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
