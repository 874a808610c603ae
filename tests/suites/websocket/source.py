"""Autobahn|Testsuite's cases as a Python 3 package in build/suites: a mechanical conversion of Python 2 code.

PyPI has the suite as a source distribution. fissix, a fork of lib2to3, converts it, with a few
replacements where Python 2's strings were bytes. Texts there are latin-1 strings here, one character a byte;
`peer.py` translates them. Results are those of a converted copy, and should be quoted as such.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

from fissix.refactor import RefactoringTool, get_fixers_from_package

VERSION = "25.10.1"
BUILD = Path(__file__).parents[3] / "build" / "suites"
FOLDER = BUILD / f"autobahntestsuite-{VERSION}-python3"

# Modules that the cases import, speaking latin-1 to them.
SHIM = '''\
"""Stand-ins for what took and gave Python 2's strings."""
import binascii as _binascii
from autobahn.websocket.utf8validator import Utf8Validator as _Utf8Validator

def octets(text):
    return text.encode("latin-1") if isinstance(text, str) else text

class binascii:
    hexlify = b2a_hex = staticmethod(lambda data: _binascii.hexlify(octets(data)).decode())
    unhexlify = a2b_hex = staticmethod(lambda text: _binascii.unhexlify(text).decode("latin-1"))

class Utf8Validator(_Utf8Validator):
    def validate(self, data):
        return super().validate(octets(data))
'''
EVERYWHERE = [
    ("import binascii\n", "from autobahntestsuite.shim import binascii\n"),
    ("from autobahn.websocket.utf8validator import", "from autobahntestsuite.shim import"),
    ("len(self.payload) / self.p.autoFragmentSize", "len(self.payload) // self.p.autoFragmentSize"),
    # Pickles of equal things were equal bytes in Python 2.
    ("return pickle.dumps(obj1) == pickle.dumps(obj2)", "return obj1 == obj2"),
    ("(object, Case, )", "(Case,)"),
    ("(object, Case,)", "(Case,)"),
    ("(object, Case)", "(Case,)"),
    ("from zope.interface import implements", "implements = lambda *names: None"),
]
# The deflate cases: data files next to the package, and names of Autobahn that have changed since.
DEFLATE = [
    (
        r'pkg_resources\.resource_filename\("autobahntestsuite", "testdata/%s" % ([^)]*)\)',
        r'os.path.join(os.path.dirname(__file__), "..", "testdata", \1)',
    ),
    (r"import copy, os, pkg_resources,", "import copy, os,"),
    (r"\b(request|accept)NoContextTakeover", r"\1_no_context_takeover"),
    (r"\b(request|accept)MaxWindowBits", r"\1_max_window_bits"),
    (r"\bnoContextTakeover", "no_context_takeover"),
    (r"\bwindowBits", "window_bits"),
]


def converted() -> Path:
    """The folder to import `autobahntestsuite` from, made if it is not there."""
    if not FOLDER.exists():
        print(f"converting Autobahn|Testsuite {VERSION} to Python 3", flush=True)
        partial = FOLDER.with_suffix(".tmp")
        convert(unpacked() / "autobahntestsuite", partial / "autobahntestsuite")
        partial.rename(FOLDER)
    return FOLDER


def unpacked() -> Path:
    name = f"autobahntestsuite-{VERSION}"
    BUILD.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(BUILD), f"autobahntestsuite=={VERSION}"], check=True)
    with tarfile.open(BUILD / f"{name}.tar.gz") as archive:
        archive.extractall(BUILD, filter="data")
    return BUILD / name


def convert(source: Path, target: Path) -> None:
    """Only the cases and their selection: the rest of the suite is its own server and pages."""
    tool = RefactoringTool(get_fixers_from_package("fissix.fixes"))
    (target / "case").mkdir(parents=True, exist_ok=True)
    for path in [source / "caseset.py", *(source / "case").glob("*.py")]:
        text = str(tool.refactor_string(path.read_text("utf-8") + "\n", str(path)))
        (target / path.relative_to(source)).write_text(replaced(text, path.name))
    (target / "shim.py").write_text(SHIM)
    (target / "__init__.py").write_text(f'version = "{VERSION}"\n')
    (target / "testdata").mkdir(exist_ok=True)
    for path in (source / "testdata").iterdir():
        (target / "testdata" / path.name).write_bytes(path.read_bytes())


def replaced(text: str, name: str) -> str:
    # A character beyond ASCII was its bytes in UTF-8.
    text = re.sub(r"[^\x00-\x7f]", lambda one: "".join(f"\\x{byte:02x}" for byte in one[0].encode()), text)
    for old, new in EVERYWHERE:
        text = text.replace(old, new)
    if name == "case12_x_x.py":
        for pattern, new in DEFLATE:
            text = re.sub(pattern, new, text)
    return text
