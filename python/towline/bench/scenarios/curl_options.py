"""The options of curl, by what they mean for a request that is sent again."""

from __future__ import annotations

_SHORT = """
0=http1.0 1=tlsv1 4=ipv4 6=ipv6 :=next #=progress-bar A=user-agent C=continue-at D=dump-header E=cert F=form
G=get H=header I=head J=remote-header-name K=config L=location N=no-buffer O=remote-name R=remote-time
S=show-error T=upload-file U=proxy-user X=request Y=speed-limit Z=parallel b=cookie c=cookie-jar d=data
e=referer f=fail g=globoff i=include j=junk-session-cookies k=insecure m=max-time n=netrc o=output p=proxytunnel
q=disable r=range s=silent u=user v=verbose w=write-out x=proxy y=speed-time z=time-cond
"""
_VALUED = """
config cookie data data-ascii data-binary data-raw data-urlencode form form-string header json oauth2-bearer
range referer request request-target upload-file url url-query user user-agent variable
"""
_IGNORED_VALUED = """
abstract-unix-socket alt-svc cacert capath ciphers connect-timeout connect-to cookie-jar create-file-mode
crlfile curves dns-interface dns-ipv4-addr dns-ipv6-addr dns-servers doh-url dump-header ech etag-save
expect100-timeout happy-eyeballs-timeout-ms hsts interface ip-tos keepalive-cnt keepalive-time libcurl
limit-rate local-port max-filesize max-redirs max-time noproxy output output-dir parallel-max parallel-max-host
pinnedpubkey proto proto-redir rate resolve retry retry-delay retry-max-time sigalgs speed-limit speed-time
stderr tls-max tls13-ciphers trace trace-ascii trace-config unix-socket vlan-priority write-out
"""
_IGNORED = """
alpn basic buffer ca-native cert-status clobber compressed-ssh create-dirs disable disallow-username-in-url
doh-cert-status doh-insecure fail fail-early fail-with-body false-start form-escape http0.9 http1.1
ignore-content-length include insecure ipv4 ipv6 keepalive mptcp npn out-null parallel parallel-immediate
post301 post302 post303 progress-bar progress-meter raw remote-header-name remote-name remote-name-all
remote-time remove-on-error retry-all-errors retry-connrefused sessionid show-error show-headers silent
skip-existing ssl ssl-allow-beast ssl-no-revoke ssl-reqd ssl-revoke-best-effort sslv2 sslv3 styled-output
suppress-connect-headers tcp-fastopen tcp-nodelay tls-earlydata tlsv1 tlsv1.0 tlsv1.1 tlsv1.2 tlsv1.3 trace-ids
trace-time verbose xattr
"""

SHORT: dict[str, str] = {letter: name for letter, _, name in (one.partition("=") for one in _SHORT.split())}
# Options with a value that the request depends on.
VALUED = frozenset(_VALUED.split())
# Options without a value that the request depends on.
PLAIN = frozenset(("get", "head", "location", "location-trusted", "compressed", "globoff", "path-as-is"))
# The version is chosen by the measurement.
PROTOCOLS = frozenset(("http2", "http2-prior-knowledge", "http3", "http3-only"))
# Options that do not change the request: of the output, the connection, TLS, retries.
IGNORED_VALUED = frozenset(_IGNORED_VALUED.split())
IGNORED = frozenset(_IGNORED.split())
