"""Which of the suites' tests are run, and which may fail: each with its reason.

A listed test that passes fails the run, so that the lists stay true.
"""

from __future__ import annotations

import os
import re

import pytest

HELD = "the head is held until the body, so the application's mistake is answered with a 500"
KEPT = "an exception costs its own answer; the connection stays usable, as its framing is intact"
LOGGER = "Towline writes its access log natively, not through logging"
INSIDE = "looks at an attribute of uvicorn's protocol objects"
OFFERED = "WebSocket is always offered: an upgrade is not turned down for want of a library"
REASON = "a disconnect always has its reason (ASGI 2.3), empty where none was given"
CLOSED = "closed in order, 1000 or 1011, where uvicorn drops the connection"
OWN_WORDS = "the refusal names the rule that was broken instead"

UVICORN: dict[str, str] = {
    r".*::test_invalid_header_name.*": HELD,
    r".*::test_response_header_splitting.*": HELD,
    r".*::test_duplicate_start_message.*": HELD,
    r".*::test_partial_response_returned.*": HELD,
    r".*::test_missing_start_message.*": KEPT,
    r".*::test_app_exception.*": KEPT,
    r".*::test_no_response_returned.*": KEPT,
    r".*::test_message_after_body_complete.*": KEPT,
    r".*::test_value_returned.*": KEPT,
    r".*::test_request_logging.*": LOGGER,
    r".*::test_keepalive_timeout_with_pipelined.*": INSIDE,
    r".*::test_large_post_request.*": INSIDE,
    r".*::test_chunked_encoding\[.*": "a whole body gets Content-Length: ASGI leaves the framing to the server",
    r".*::test_chunked_encoding_empty_body.*": "as test_chunked_encoding",
    r".*::test_shutdown_during_idle.*": "a connection that has sent nothing yet has a second for its request",
    r".*::test_max_concurrency.*": "uvicorn counts connections, Towline requests in flight: one is admitted",
    r".*::test_100_continue_sent.*": "the body is there already: no interim answer is due (RFC 9110 10.1.1)",
    r".*::test_unsupported_ws_upgrade_request.*": OFFERED,
    r".*::test_header_upgrade_is_.*": "an upgrade that is not spoken is ignored without a word (RFC 9110 7.8)",
    r".*::test_scopes.*": "Towline implements ASGI 2.5; uvicorn says 2.3",
    r".*::test_invalid_http_request.*": OWN_WORDS,
    r".*::test_huge_headers_h11protocol_failure.*": "431, the status made for it, instead of 400",
    r".*::test_huge_headers_h11_max_incomplete": "a setting of h11's; Towline's is --limit-request-field-size",
    r".*::test_huge_headers_httptools.*": "32 KiB in one field; Towline's default bound is 8 KiB",
    r".*::test_httptools_http10_keep_alive_disabled": "HTTP/1.0 keep-alive works here",
    r".*::test_default_default_headers": "says server: towline",
    r".*::test_add_additional_header": "says server: towline",
    r".*::test_run_ssl_context_factory_custom": "TLS is rustls: there is no ssl.SSLContext to make",
    r".*test_websocket\.py::test_(duplicate_handshake|asgi_return_value|close_transport_on_asgi_return)\[.*": CLOSED,
    r".*::test_send_close_on_server_shutdown\[.*": REASON,
    r".*::test_server_reject_connection(_with_response|_with_multibody_response)?\[.*": REASON,
    r".*::test_server_reject_connection_with_(body_nolength|invalid_msg|missing_body)\[.*": HELD,
    r".*::test_server_multiple_websocket_http_response_start_events\[.*": HELD,
    r".*::test_server_reject_connection_with_invalid_status\[.*": KEPT,
    r".*::test_connection_lost_before_handshake.*": "one that the application has not accepted has the graceful time",
    r".*::test_(frame_after_close_handshake_is_ignored|server_keepalive_(ping_pong|disabled))\[.*": INSIDE,
    r".*::test_server_keepalive_ping_timeout\[.*": OWN_WORDS,
    r".*test_websocket\.py::test_(default|multiple)_server_headers?\[.*": "says server: towline",
}

STARLETTE: dict[str, str] = {
    r".*test_gzip_.*trailers.*": "httpx does not show trailers",
    r".*::test_received_bytes_are_counted_with_unreliable.*": "h11 refuses to send such a body",
    r".*::test_force_500_response.*": "the server's own 500 has a text",
    r".*::test_cookies_invalid\[.*expected4.*": "h11 refuses to send such a field",
    r".*::test_staticfiles_304_with_if_none_match_wildcard.* .t.*": "h11 refuses to send such a field",
    r".*::test_request_send_push_promise\[.*": "server push is not offered (nor is it by any browser)",
    r".*::test_response_phrase.*": "a final status is from 200 to 599 (RFC 9110 15)",
    r".*::test_url_for_with_root_path.*": "the test client leaves root_path out of path; a server puts it in",
    r".*::test_host_routing_rejects_invalid_hosts.*evil.*": "the server itself refuses that Host, with a 400",
    r".*::test_paths_with_root_path.*": "as test_url_for_with_root_path",
}
if os.geteuid() == 0:
    STARLETTE[r".*::test_staticfiles_with_invalid_dir_permissions_.*"] = "root may read everything"


HTTPCORE = "looks into httpcore's pool, which is not there"
URLLIB3 = "counts the pools of urllib3, which are not there"
COMMAND_LINE = "httpx's command line shows the connection before the request; here it is known with the head"
UVICORN_CASE = "this uvicorn writes lower-case header names; it fails without Towline too"
UVICORN_LOG = "this uvicorn writes an access log into the captured log; it fails without Towline too"

HTTPX: dict[str, str] = {
    r"client/test_proxies\.py::test_socks_proxy": HTTPCORE,
    r"client/test_proxies\.py::test_transport_for_request\[.*-http://\[::1\].*": HTTPCORE,
    r"client/test_proxies\.py::test_transport_for_request\[.*-proxies(3|5|8|9|1[0-9]|2[0-2])-http.*": HTTPCORE,
    r"client/test_proxies\.py::test_proxies_environ\[.*-http://(localhost:123|example\.com)\]": HTTPCORE,
    r"test_api\.py::test_httpcore_lazy_loading": HTTPCORE,
    r"test_main\.py::test_(get|json|binary|redirects|follow_redirects|post)": UVICORN_CASE,
    r"test_main\.py::test_verbose": COMMAND_LINE,
    r"test_main\.py::test_auth": COMMAND_LINE,
    r"test_utils\.py::test_logging_(request|redirect_chain)": UVICORN_LOG,
}
# In addition to those of httpx: httpx2 itself differs from what httpx's tests expect. They fail without Towline too.
NAMED = "says python-httpx2"
HTTPX2: dict[str, str] = {
    r"client/test_client\.py::test_raw_client_header": NAMED,
    r"client/test_event_hooks\.py::test_(async_)?event_hooks(_with_redirect)?(\[.*)?": NAMED,
    r"client/test_headers\.py::test_client_header": NAMED,
    r"client/test_headers\.py::test_header_(merge_conflicting_headers|update)": NAMED,
    r"client/test_headers\.py::test_host_with.*": NAMED,
    r"test_asgi\.py::test_asgi_headers\[.*": NAMED,
    r"test_config\.py::test_load_ssl_with_keylog": "httpx2 trusts through truststore",
    r"test_exported_members\.py::test_all_imports_are_exported": "httpx2 exports more",
}
REQUESTS: dict[str, str] = {
    r"test_lowlevel\.py::test_chunked_encoding_error": "a head that is cut off is no response (RFC 9112 8)",
    r"test_requests\.py::.*::test_different_connection_pool_for_tls_settings_verify_True": URLLIB3,
    r"test_requests\.py::.*::test_different_connection_pool_for_tls_settings_verify_bundle.*": URLLIB3,
}
# Tests of packages above the drop-ins (sdk_plugin.py) that fail with them and pass without.
SDKS: dict[str, dict[str, str]] = {}


def select(
    config: pytest.Config, items: list[pytest.Item], deselect: tuple[str, ...], needs_fixture: str = ""
) -> None:
    """Leaves out the tests with one of these words among their parameters, and those without the fixture."""

    def is_selected(item: pytest.Item) -> bool:
        parameters = re.split(r"[\[\]-]", item.name)[1:]
        has_fixture = not needs_fixture or needs_fixture in getattr(item, "fixturenames", ())
        return has_fixture and not any(word in parameters or f"[{word}" in item.name for word in deselect)

    config.hook.pytest_deselected(items=[item for item in items if not is_selected(item)])
    items[:] = [item for item in items if is_selected(item)]


def mark(items: list[pytest.Item], table: dict[str, str]) -> None:
    """Marks the tests of `table` (keys: regular expressions over `file.py::test[parameters]`)."""
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        for pattern, reason in table.items():
            if re.fullmatch(pattern, name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
