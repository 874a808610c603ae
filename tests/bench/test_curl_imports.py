"""Command lines of curl are imported as bash and curl send them: the requests of both are compared."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from towline.bench.scenarios import ScenarioError
from towline.bench.scenarios.imported import Imported
from towline.bench.scenarios.request_files import from_file

Sent = tuple[bytes, list[bytes], bytes]
# Host has the port, curl names itself, and Accept is curl's default; codings and Expect depend on curl's version.
LEFT_OUT = (
    b"accept-encoding:",
    b"host:",
    b"user-agent: curl",
    b"user-agent: towline-bench",
    b"accept: */*",
    b"expect:",
)
FILES = {
    "cookies.txt": "# Netscape HTTP Cookie File\n127.0.0.1\tFALSE\t/\tFALSE\t0\tsid\tone\n#HttpOnly_127.0.0.1\tFALSE\t/a\tFALSE\t0"
    "\tdeep\ttwo\n127.0.0.1\tFALSE\t/\tFALSE\t1\told\tx\nelsewhere.example\tTRUE\t/\tFALSE\t0\tother\tx\n"
    "127.0.0.1\tFALSE\t/\tTRUE\t0\tsecure\tx\n",
    "dump.txt": "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/; HttpOnly\r\nset-cookie: b=2; path=/a\r\nSet-Cookie: c=3; "
    "domain=127.0.0.1\r\nSet-Cookie: d=; Max-Age=0\r\nSet-Cookie: e=5; domain=other.example\r\n"
    "Set-Cookie: g=; expires=Thu, 01-Jan-1970 00:00:00 GMT\r\nSet-Cookie: h=8; Expires=Fri, 31 Dec 2999 23:59:59 GMT\r\n\r\n",
    "body.txt": "l1\nl2\r\n",
    "a b.txt": "spaced",
    "data.json": '{"a":\n1}',
    "headers.txt": "X-A: 1\nX-B: 2\n\n# comment\n",
    "options.cfg": '# options\nheader = "X-A: \\"q\\""\n-H X-B:1\nuser-agent: me\n--data a=1\ncompressed\nurl = "URL/cfg"\n',
}
SAME = {
    "quotes": r"""curl URL/ -H "X-A: \"q\" \$ \x" -d 'it'\''s' -d a\ b -d ''""",
    "bytes": r"""curl URL/ --data-raw $'caf\xc3\xa9 \xff\xfe \303\251 \u00e9 \U0001F600 \a\b\e\E\f\n\r\t\v\\\'\"\? \q \x4 \u41g'""",
    "half characters of two quotes": r"""curl URL/ --data-raw $'\xc3'$'\xa9'""",
    "control": r"""curl URL/ --data-raw 'a='$'b\cA\041'""",
    "locale quotes": """curl URL/ -d $"a b" """,
    "continued lines": "curl URL/ \\\n -d 'a\n b' \\\n  -d \"c\\\nd\"",
    "body with a command": "curl URL/ -d 'x\ncurl URL/no\n#y'",
    "comments": "# one\ncurl URL/1  # c 'x\n  curl URL/2#frag",
    "operators": "curl URL/1; curl URL/2 && curl URL/3 | cat >/dev/null; curl URL/4 2>&1 >/dev/null <body.txt",
    "background": "curl URL/?a=1&\nwait",
    "parentheses": "(curl URL/1; curl URL/2 )\n{ curl URL/3; }",
    "prefixes": "time curl URL/1\nif curl URL/2; then env A=b curl URL/3; fi\n! command curl URL/4\n(curl URL/5)",
    "variables": 'NAME=\'a b\'\nexport OTHER=$NAME-c\ncurl URL/ -H "X: $NAME ${OTHER} $HOME" -d \'$NAME\' -d "\\$NAME" -d "$OTHER"-',
    "no words": "curl URL/ -d a''b -H 'X: '\"\"",
    "dashes": "curl -sSLkXPUT -dx -H'X:y' -- URL/",
    "repeated headers": "curl URL/ -H 'X-A: 1' -H 'X-A: 2' -H 'x-a: 3' -H 'Cookie: a=1' -H 'Cookie: b=2'",
    "removed headers": "curl URL/ -H 'X;' -H 'Accept:' -H 'User-Agent: ' -H 'Y:' -d a -H Content-Type:",
    "removed and given": "curl URL/ -H 'Accept:' -H 'Accept: q' -A ''",
    "headers of a file": "curl URL/ -H @headers.txt",
    "no body": "curl -X POST URL/",
    "empty body": "curl -d '' URL/",
    "HEAD": "curl -I -G -d a=1 URL/",
    "HEAD as GET": "curl -I -X GET URL/",
    "method": "curl -X purge URL/",
    "form data": "curl -d @body.txt -d b --data-binary @body.txt --data-raw @x --data-ascii c URL/",
    "json": "curl --json '{\"a\":' --json @data.json --json '}' URL/ -H 'Accept: text/x'",
    "data and json": "curl -d a=1 --json {} URL/",
    "urlencoded": "curl --data-urlencode 'q=a b&c+d/é~*' --data-urlencode '=x y' --data-urlencode 'plain text' "
    "--data-urlencode n@body.txt --data-urlencode @body.txt URL/",
    "query of data": "curl -G -d a=1 -d b URL/?x=2 URL/? URL/?y=1&",
    "query": "curl --url-query 'a=b' --url-query '+c=d/e' --url-query f URL/?x=1#y",
    "user": "curl -u 'u:p:q' http://x:y@HOST/",
    "user of a URL": "curl http://x:y%20z@HOST/ http://x@HOST/",
    "bearer": "curl --oauth2-bearer tok -u a:b URL/",
    "referer": "curl -e 'http://r/;auto' URL/",
    "range": "curl -r 0-9 URL/",
    "cookies": "curl -b 'a=b; c=d' -b e=f URL/",
    "cookies of a file": "curl -b cookies.txt -b x=y -c jar URL/a/b URL/ab URL/",
    "cookies of a dump": "curl -b dump.txt URL/a/b URL/",
    "cookies and header": "curl -b cookies.txt -b x=y -H 'Cookie: z=1' URL/",
    "cookies of no file": "curl -b none.txt -b '' URL/",
    "ranges": "curl 'URL/[08-10]/[a-e:2]' 'URL/[1-1]?x=[3-9:3]'",
    "sets": "curl 'URL/{a,b}/{c}?{d,e,}' URL/{x,y}",
    "escaped brackets": r"curl 'URL/\{a\}\[1-2\]' -d {}",
    "no globs": "curl -g 'URL/[1-2]{x,y}|'",
    "dots": "curl URL/a/./b/../c URL/a/.. URL/.. 'URL/a?b=../c' URL?x=1",
    "path as is": "curl --path-as-is URL/a/../c",
    "upload": "curl -T body.txt URL/up/?q=1 -T 'a b.txt' URL URL/rest/",
    "uploads to one": "curl -T '{body.txt,data.json}' URL/a/ -X POST",
    "upload to a name": "curl -T body.txt URL/up",
    "form": "curl -F a=b -F 'f=@body.txt' -F 'g=<body.txt' -F 'h=@data.json;type=image/x;filename=\"q\\\"r.png\"' "
    "-F 't=x;type=text/html; charset=utf-8' --form-string 's=@b;type=x' -F 'm=@\"a b.txt\"' URL/",
    "form with a type": "curl -H 'Content-Type: multipart/form-data' -F a=b URL/",
    "next": "curl URL/1 -d a -H 'X: 1' --next URL/2 -d b -: --next -I URL/3",
    "options of a file": "curl -K options.cfg URL/2",
    "no scheme": "curl HOST/x HOST/y?to=http://other/",
    "variable of the line": 'BASE=URL; curl "$BASE/x" -d "a${BASE}b"',
    "odd URLs": "curl 'URL/%zz?%' URL/a//b/./ 'URL/a;b=c?d;e' 'URL/?a=b#c?d' 'URL?'",
    "odd forms": "curl -F 'e=' -F 'n\"q=v' -F 'c=\"q;r\"' -F 'd= e ' -F 'a=@body.txt;filename=' URL/",
    "odd data": "curl -d @body.txt --json '' -d =b --data-urlencode '' --data-urlencode a= URL/",
    "quotes without spaces": r"""curl URL/ -d $'a'"b"'c'd\ e -d "it's \"x\" \\ \n" -H $'X: a\tb ' 2>&1 >out -d last""",
    "ignored": "curl -sS -o /dev/null -w '%{http_code}' -m 5 --retry 2 --connect-timeout 3 --no-keepalive --no-buffer -4 -N -f "
    "--cacert none --tlsv1.2 --http1.1 --no-progress-meter URL/",
}


@contextmanager
def recorded() -> Iterator[tuple[int, list[Sent]]]:
    """A server that records requests, each on a connection of its own."""
    sent: list[Sent] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    conn = listener.accept()[0]
                except OSError:
                    return
                with conn, conn.makefile("rb") as file:
                    lines = []
                    while (line := file.readline()) not in (b"\r\n", b""):
                        lines.append(line.rstrip(b"\r\n"))
                    head = b"\r\n".join(lines)
                    if re.search(rb"(?i)expect: 100", head):
                        conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    length = re.search(rb"(?i)content-length: (\d+)", head)
                    body = file.read(int(length[1]) if length else 0)
                    if lines:
                        sent.append((lines[0].removesuffix(b" HTTP/1.1"), lines[1:], body))
                    conn.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], sent
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def comparable(requests: list[Sent]) -> list[Sent]:
    """Without what differs by intent: defaults, the order and case of names, the boundary."""
    found = []
    for first, lines, body in requests:
        boundary = re.search(
            rb"boundary=(-+\w+)\Z", b"\n".join(line for line in lines if b"boundary=" in line)
        )
        kept = sorted(
            name.lower() + b":" + value.strip()
            for name, _, value in (
                line.partition(b":") for line in lines if not line.lower().startswith(LEFT_OUT)
            )
        )
        if boundary:
            kept = [
                line.replace(boundary[1], b"-") for line in kept if not line.startswith(b"content-length")
            ]
            body = body.replace(boundary[1], b"-")
        found.append((first, kept, body))
    return found


def read(folder: Path, script: str) -> Imported:
    (folder / "script.sh").write_text(script)
    return from_file(folder / "script.sh")


def of_import(found: Imported) -> list[Sent]:
    requests = []
    for one in found.scenario.requests:
        first, *lines = one.head().rstrip(b"\r\n").split(b"\r\n")
        body = one.body.whole() if one.body is not None else b""
        requests.append((first.removesuffix(b" HTTP/1.1"), lines, body))
    return requests


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("bash"), reason="needs curl and bash")
@pytest.mark.parametrize("name", SAME)
def test_a_command_is_sent_as_curl_sends_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = re.search(
        r"curl (\d+)\.(\d+)", subprocess.run(["curl", "-V"], capture_output=True, text=True).stdout
    )
    assert version
    if (int(version[1]), int(version[2])) < (7, 87):
        pytest.skip("curl is too old for --url-query")
    monkeypatch.chdir(tmp_path)
    with recorded() as (port, sent):

        def here(text: str) -> str:
            return text.replace("URL", f"http://127.0.0.1:{port}").replace("HOST", f"127.0.0.1:{port}")

        for file, content in FILES.items():
            Path(file).write_bytes(here(content).encode())
        script = here(SAME[name])
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            timeout=60,
            env={**os.environ, "no_proxy": "*", "CURL_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        )
    assert sent, done.stderr
    imported = of_import(read(tmp_path, script))
    if name == "background":
        sent.sort()
    assert comparable(imported) == comparable(sent)


def test_commands_of_a_page_are_found(tmp_path: Path) -> None:
    page = "Don't `run` this:\n\n    curl http://a/1\n\nIt's $5 (more), curl is fine.\n\n```\n$ curl http://a/2 \\\n  -d x\nok\n```\n"
    assert [one.target for one in read(tmp_path, page).scenario.requests] == ["/1", "/2"]


def test_a_character_of_two_escapes_is_sent_whole(tmp_path: Path) -> None:
    found = read(tmp_path, r"""curl http://a/ --data-raw $'{"t":"it\'s \ud83d\ude00"}'""")
    (request,) = found.scenario.requests
    assert request.body is not None
    assert request.body.whole() == '{"t":"it\'s 😀"}'.encode()
    assert found.scenario.notes == (r"\ud83d\ude00 is sent as the one character that a browser means",)


@pytest.mark.parametrize(
    ("script", "target", "notes"),
    [
        (
            "curl --variable a='b c' --expand-url 'http://a/{{a:trim:url}}/{{a:b64:url}}?{{none}}'",
            "/b%20c/YiBj?",
            0,
        ),
        ("curl --variable %HOME --expand-request-target '/{{HOME:url}}' http://a/", "/%2Fhome%2Fme", 0),
        ("curl --variable %UNSET_X=d --expand-url 'http://a/{{UNSET_X}}/\\{{x}}' -g", "/d/{{x}}", 0),
        ("curl 'http://a/?q=é'", "/?q=%C3%A9", 1),
        ("curl --http2 --compressed -L http://a/", "/", 3),
    ],
)
def test_newer_options_and_notes(
    script: str, target: str, notes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = read(tmp_path, script)
    assert [one.target for one in found.scenario.requests] == [target]
    assert len(found.scenario.notes) == notes


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('curl http://a/ -d "$(cat x)"', "an expansion needs a shell"),
        ("curl http://a/ -d `cat x`", "an expansion needs a shell"),
        ("curl http://a/ -d ${A:-b}", "an expansion needs a shell"),
        ('T=$(login)\ncurl http://a/ -H "X: $T"', "$T, which is not set here, needs a shell"),
        ("for i in 1 2; do\n  curl http://a/$i\ndone", "$i, which is not set here, needs a shell"),
        ("T='a b'\ncurl http://a/ -d $T", "the splitting of a value without quotes"),
        ('curl http://a/ -d {"a":1,"b":2}', "the expansion of { } without quotes"),
        ("curl http://a/ -d @- <<EOF\nx\nEOF", "a here-document needs a shell"),
        ("curl http://a/ -T - < x", "the standard input is not known"),
        (r"curl http://a/ -d $'\ud83d'", r"\ud83d, which is no character,"),
        (r"curl http://a/ -d $'a\0b'", "a text with the byte 0"),
        ("curl http://a/ -d 'x", "No closing quotation"),
        ('curl ^"http://a/^" ^\n  -H ^"accept: x^"', "copy the request as cURL (bash)"),
        ('curl "http://a/" ^\n  -H "accept: x"', "copy the request as cURL (bash)"),
        ('Invoke-WebRequest -UseBasicParsing -Uri "http://a/"', "PowerShell is not imported"),
        ("curl http://a/ -H 'X: caf'$'\\xe9'", "no header field that can be sent"),
        ("curl http://a/ -H 'Content-Length: 3' -d ab", "Content-Length is '3', and the body has 2 bytes"),
        ("curl http://a/ -H 'Host:'", "a request without Host is not sent"),
        ("curl 'http://a/x y'", "curl refuses the blank"),
        ("curl 'http://a/[1-2000]'", "more than 1,000 URLs"),
        ("curl 'http://a/[1-9]/[1-9]/[1-9]/[1-9]'", "more than 1,000 URLs"),
        ("curl 'http://a/[3-1]'", "a bad range"),
        ("curl 'http://a/{}'", "a bad set"),
        ("curl 'http://a/x}'", "a bracket that nothing opens"),
        ("curl -d a -F b=c http://a/", "curl refuses more than one of"),
        ("curl -G -d a -T /dev/null http://a/", "curl refuses more than one of"),
        ("curl http:/a/x", "is no URL of http or https"),
        ("curl -u me http://a/", "curl asks for the password"),
        ("curl --digest http://a/", "--digest is not imported"),
        ("curl -F 'a=(x' http://a/", "-F 'a=(x' is not imported"),
        ("curl --expand-data '{{x:rot13}}' http://a/", "no function 'rot13'"),
        ("curl --variable %UNSET_X http://a/", "not set in the environment"),
        ("curl -K none.cfg", "cannot read none.cfg"),
        ("curl 'http://[::1/'", "bad"),
        ("curl http://a:99999/", "is no URL of http or https"),
    ],
)
def test_an_error_names_the_part_that_cannot_be_sent(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("T", raising=False)
    with pytest.raises(ScenarioError) as raised:
        read(tmp_path, script)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
