"""The part of a Kubernetes API server that `towline load --kubernetes` needs, as an ASGI application: Jobs whose pods are
agents on this machine, which start when somebody attaches to them.

Variables: AGENT, the command of a pod as JSON; LOG, a file for the requests; BROKEN, a reason for which containers wait.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

AGENT = json.loads(os.environ["AGENT"])
LOG = Path(os.environ["LOG"])
JOBS: dict[str, dict[str, Any]] = {}
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
PROTOCOL = "v5.channel.k8s.io"
GROUPS = {
    "kind": "APIGroupList",
    "apiVersion": "v1",
    "groups": [
        {
            "name": "batch",
            "versions": [{"groupVersion": "batch/v1", "version": "v1"}],
            "preferredVersion": {"groupVersion": "batch/v1", "version": "v1"},
        }
    ],
}


def resources(group: str, *found: tuple[str, str]) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list"]
    listed = [
        {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}
        for name, kind in found
    ]
    return {"kind": "APIResourceList", "groupVersion": group, "resources": listed}


def pod(job: str, number: int) -> dict[str, Any]:
    name = f"{job}-{number}-abcde"
    broken = os.environ.get("BROKEN")
    state = (
        {"waiting": {"reason": broken, "message": "because"}} if broken and number == 1 else {"running": {}}
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"job-name": job}},
        "spec": {
            "nodeName": f"node{number}",
            "containers": [{"name": "agent", "image": "i", "stdin": True, "stdinOnce": True}],
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "agent", "state": state}]},
    }


def pods() -> dict[str, dict[str, Any]]:
    all_pods = (pod(name, n) for name, job in JOBS.items() for n in range(job["spec"]["completions"]))
    return {one["metadata"]["name"]: one for one in all_pods}


def reply(method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    match method, path.strip("/").split("/"):
        case "GET", ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        case "GET", ["apis"]:
            return 200, GROUPS
        case "GET", ["api", "v1"]:
            return 200, resources("v1", ("pods", "Pod"))
        case "GET", ["apis", "batch", "v1"]:
            return 200, resources("batch/v1", ("jobs", "Job"))
        case "POST", ["apis", "batch", "v1", "namespaces", "default", "jobs"]:
            job = json.loads(body)
            job["metadata"] |= {
                "name": f"{job['metadata']['generateName']}{len(JOBS)}",
                "namespace": "default",
            }
            JOBS[job["metadata"]["name"]] = job
            return 201, job
        case "DELETE", ["apis", "batch", "v1", "namespaces", "default", "jobs", name]:
            JOBS.pop(name, None)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        case "GET", ["api", "v1", "namespaces", "default", "pods"]:
            return 200, {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {},
                "items": list(pods().values()),
            }
        case "GET", ["api", "v1", "namespaces", "default", "pods", name] if name in pods():
            return 200, pods()[name]
    return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


async def attach(receive: Any, send: Any) -> None:
    """An agent between the channels of the client."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": PROTOCOL})
    agent = await asyncio.create_subprocess_exec(
        *AGENT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26
    )
    assert agent.stdin is not None
    assert agent.stdout is not None

    async def inwards() -> None:
        assert agent.stdin is not None
        while True:
            message = await receive()
            data: bytes = message.get("bytes") or b""
            if message["type"] != "websocket.receive" or data[:1] == bytes([CLOSE]):
                # stdinOnce: the end of the client is the end of the input.
                agent.stdin.close()
                return
            if data[:1] == bytes([STDIN]):
                agent.stdin.write(data[1:])
                await agent.stdin.drain()

    reading = asyncio.ensure_future(inwards())
    while data := await agent.stdout.read(65536):
        await send({"type": "websocket.send", "bytes": bytes([STDOUT]) + data})
    status = await agent.wait()
    outcome: dict[str, Any] = {"metadata": {}, "status": "Success" if status == 0 else "Failure"}
    if status:
        outcome |= {"reason": "InternalError", "message": f"the container ended with {status}"}
    await send({"type": "websocket.send", "bytes": bytes([ERROR]) + json.dumps(outcome).encode()})
    await send({"type": "websocket.close", "code": 1000})
    reading.cancel()


async def app(scope: Any, receive: Any, send: Any) -> None:
    with LOG.open("a") as log:
        log.write(f"{scope.get('method', 'WEBSOCKET')} {scope['path']}?{scope['query_string'].decode()}\n")
    if scope["type"] == "websocket":
        return await attach(receive, send)
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    status, document = reply(scope["method"], scope["path"], body)
    text = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
    return None
