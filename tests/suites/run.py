"""Runs the test suites of other projects with Towline in their place: `python tests/suites/run.py [SUITE [TESTS...]]`.

For the server: uvicorn, starlette. For the client's transports: httpx, httpx2 (with httpx's tests, as it
ships none), requests, and packages above them: openai, anthropic, huggingface_hub, requests-oauthlib; with TOWLINE_STOCK=1 these run
without Towline, to compare. Downloads the source distributions of the installed versions into build/suites, and runs their tests with a
plugin. The suites are not kept in the project.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "suites"
SUITES = {
    "uvicorn": [
        "tests/protocols/test_http.py",
        "tests/protocols/test_websocket.py",
        "tests/test_default_headers.py",
        "tests/test_ssl.py",
        "tests/test_main.py::test_run",
    ],
    "starlette": ["tests", "--ignore=tests/test_testclient.py"],
    "httpx": ["tests", "-m", "not network"],
    "httpx2": ["tests", "-m", "not network"],
    # Left out: an address that swallows packets, and names of the Internet.
    "requests": [
        "tests",
        "-k",
        "not connect_timeout and not timeout_connect and not use_proxy_from_environment",
    ],
    # Left out: tests/api_resources, which need the vendor's mock server, and a file whose snapshots the sdist lacks.
    "openai": [
        *(f"tests/test_{name}.py" for name in ("client", "httpx2_base", "httpx2_respx", "auth", "files")),
        *(f"tests/test_{name}.py" for name in ("streaming", "response", "legacy_response")),
        *("tests/test_status_error_messages.py", "tests/lib/test_azure.py", "tests/lib/test_bedrock.py"),
        *("tests/lib/chat", "tests/lib/responses", "--ignore=tests/lib/chat/test_completions_streaming.py"),
    ],
    # Left out: the same, and what needs boto3.
    "anthropic": [
        *(f"tests/test_{name}.py" for name in ("client", "middleware", "streaming", "response")),
        *("tests/lib/streaming", "tests/lib/test_azure.py", "tests/lib/test_vertex.py"),
    ],
    # Left out: tests that call the Hub, and one that reads a private attribute of httpcore's pool and leaves its proxy set.
    "huggingface_hub": [
        *(f"tests/test_utils_{name}.py" for name in ("http", "errors", "pagination", "headers")),
        *("tests/test_webhooks_server.py", "tests/test_offline_utils.py"),
        "-k",
        "not UniqueRequestId and not client_get_request and not flag_as_download and not paginate_hf_api "
        "and not proxy_env_is_used",
    ],
    # Left out: names of the Internet, a browser, and two that compare the clock to hundredths of a second.
    "requests-oauthlib": [
        "tests",
        "--ignore=tests/examples",
        "-k",
        "not BinaryData and not content_type_override and not url_is_native_str and not MailChimp and not Plentymarkets",
    ],
}
SOURCES = {"httpx2": "httpx"}  # package whose tests are used, if not its own
ENVIRONMENTS = {"huggingface_hub": {"HUGGINGFACE_CO_STAGING": "1"}}  # as their configuration sets it


def source_of(package: str) -> Path:
    """The unpacked source distribution of the installed version."""
    name = f"{package}-{importlib.metadata.version(package)}"
    folder = BUILD / name
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        requirement = f"{package}=={importlib.metadata.version(package)}"
        subprocess.run([*pip, "--dest", str(BUILD), requirement], check=True)
        with tarfile.open(BUILD / f"{name}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
        if (
            package == "huggingface_hub"
        ):  # its tests import each other; the sdist lacks the file that allows it
            (folder / "tests" / "__init__.py").touch()
    return folder


def run(package: str, arguments: list[str]) -> int:
    own = ENVIRONMENTS.get(package, {})
    environment = {**os.environ, **own, "PYTHONPATH": str(HERE), "TOWLINE_SUITE": package}
    name = f"{package}_plugin" if (HERE / f"{package}_plugin.py").exists() else "sdk_plugin"
    plugin = ["-p", name, "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings="]
    command = [sys.executable, "-m", "pytest", "-q", "-rfEX", "--timeout=60", *plugin]
    print(f"== {package}'s own tests, with Towline", flush=True)
    tests = arguments or SUITES[package]
    return subprocess.run(
        [*command, *tests], cwd=source_of(SOURCES.get(package, package)), env=environment, check=False
    ).returncode


def main() -> int:
    chosen = [sys.argv[1]] if len(sys.argv) > 1 else list(SUITES)
    return max(run(package, sys.argv[2:]) for package in chosen)


if __name__ == "__main__":
    sys.exit(main())
