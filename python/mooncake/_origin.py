# SPDX-License-Identifier: Apache-2.0
"""Keeps web pages away from a control port, by the rules of kvpool's own daemons (common/http_guard.h): a browser sends requests of
any page to any address that it reaches, 127.0.0.1 included, and names the page in headers that the page cannot change."""
import ipaddress
import re

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")


def is_loopback(address):
    """Whether an address that a socket is bound to is reached from this host alone."""
    return ipaddress.ip_address(address).is_loopback


def _is_local_name(host, is_browser):
    """An address, "localhost", or a name of one label, which no page on the internet has."""
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    name = parts[1]
    try:
        return ipaddress.ip_address(name.strip("[]")).version == (6 if name.startswith("[") else 4)
    except ValueError:
        return not name.startswith("[") and (name.lower() == "localhost" or (not is_browser and "." not in name))


def _is_own(origin, host):
    scheme, _, at = origin.strip().lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return host is not None and port is not None and at != "" and at.removesuffix(port) == host.strip().lower().removesuffix(port)


def refusal(headers, is_at_loopback):
    """Why a request with these headers is refused, or None. is_at_loopback: the server listens at a loopback address."""
    hosts, origins, sites = (headers.get_all(name, []) for name in ("Host", "Origin", "Sec-Fetch-Site"))
    if len(hosts) > 1 or len(origins) > 1:
        return "the request has two Host or two Origin headers"
    host = hosts[0] if hosts else None
    if any(site.strip().lower() == "cross-site" for site in sites):
        return "a web page of another site asks (Sec-Fetch-Site); this port is not for web pages"
    if origins and not _is_own(origins[0], host):
        return "a web page of another origin asks (Origin is not this server); this port is not for web pages"
    if is_at_loopback and host is not None and not _is_local_name(host.strip(), bool(origins or sites)):
        return ("this server listens at a loopback address, where Host has to be an IP address or localhost; to use a name, let it listen at "
                "another address")
    return None
