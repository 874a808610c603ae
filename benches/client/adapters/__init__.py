"""Every client behind the same small face, so that a load is written once.

An adapter does what the client's own users would write, and no more: the whole answer as bytes, JSON
through the client's own encoder and decoder, streams in the client's own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any


@dataclass(frozen=True)
class Subject:
    """One client in one of its two faces. `home`: the environment it needs for itself, if any."""

    name: str
    face: str  # "async" or "sync"
    adapter: str  # module:Class in benches.client.adapters
    packages: tuple[str, ...]
    home: str | None = None

    def load(self) -> Any:
        module, _, attribute = self.adapter.partition(":")
        return getattr(import_module(f"benches.client.adapters.{module}"), attribute)

    def versions(self) -> dict[str, str]:
        return {package: metadata.version(package) for package in self.packages}


def _faces(name: str, module: str, *packages: str, home: str | None = None) -> tuple[Subject, Subject]:
    """The two faces of a library; NAME is the asynchronous one."""
    return (
        Subject(name, "async", f"{module}:Async", packages, home),
        Subject(f"{name}-sync", "sync", f"{module}:Sync", packages, home),
    )


SUBJECTS = {
    subject.name: subject
    for subject in (
        *_faces("towline", "native", "towline"),
        Subject("towline.httpx2", "async", "httpx_family:TowlineHttpx2Async", ("towline", "httpx2")),
        Subject("towline.httpx2-sync", "sync", "httpx_family:TowlineHttpx2Sync", ("towline", "httpx2")),
        Subject("towline.httpx", "async", "httpx_family:TowlineHttpxAsync", ("towline", "httpx")),
        Subject("towline.requests", "sync", "requests_family:Towline", ("towline", "requests")),
        Subject("aiohttp", "async", "aiohttp_client:Async", ("aiohttp",)),
        Subject("httpx", "async", "httpx_family:HttpxAsync", ("httpx", "httpcore")),
        Subject("httpx-sync", "sync", "httpx_family:HttpxSync", ("httpx", "httpcore")),
        Subject("httpx2", "async", "httpx_family:Httpx2Async", ("httpx2", "httpcore2")),
        Subject("httpx2-sync", "sync", "httpx_family:Httpx2Sync", ("httpx2", "httpcore2")),
        Subject("httpcore", "async", "httpcore_family:HttpcoreAsync", ("httpcore",)),
        Subject("httpcore-sync", "sync", "httpcore_family:HttpcoreSync", ("httpcore",)),
        Subject("httpcorexyz", "async", "httpcore_family:HttpcorexyzAsync", ("httpcorexyz",)),
        Subject("httpcorexyz-sync", "sync", "httpcore_family:HttpcorexyzSync", ("httpcorexyz",)),
        Subject("urllib3", "sync", "urllib3_client:Sync", ("urllib3",)),
        Subject("requests", "sync", "requests_family:Requests", ("requests", "urllib3")),
        Subject("niquests", "async", "requests_family:NiquestsAsync", ("niquests",), home="niquests"),
        Subject("niquests-sync", "sync", "requests_family:Niquests", ("niquests",), home="niquests"),
        Subject("pycurl-multi", "async", "curl:Multi", ("pycurl",)),
        Subject("pycurl", "sync", "curl:Easy", ("pycurl",)),
        *_faces("pyreqwest", "pyreqwest_client", "pyreqwest"),
        *_faces("rnet", "rnet_client", "rnet"),
        *_faces("primp", "primp_client", "primp"),
    )
}
