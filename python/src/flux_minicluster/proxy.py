"""The proxy that kubectl uses for an API server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


def of_environment(server: str, environment: Mapping[str, str]) -> str | None:
    """The proxy for this URL, by `HTTPS_PROXY` (for `http://`: `HTTP_PROXY`) and `NO_PROXY`, as Go reads them."""

    def variable(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    url = urlsplit(server)
    host, proxy = url.hostname or "", variable(f"{url.scheme.upper()}_PROXY")
    port = str(url.port or (80 if url.scheme == "http" else 443))
    if not proxy or _is_local(host) or any(_excludes(entry, host, port) for entry in variable("NO_PROXY").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _excludes(entry: str, host: str, port: str) -> bool:
    """Whether an entry of `NO_PROXY` is for the host: `*`, a network, or an address or domain, perhaps with a port."""
    entry, address = entry.strip().lower(), _address(host)
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, wanted_port = entry.rpartition(":")
    if not colon or (":" in name and not name.startswith("[")):
        # The colons are those of an IPv6 address.
        name, wanted_port = entry, ""
    if wanted_port not in ("", port):
        return False
    excluded = _address(name.strip("[]"))
    if excluded is not None:
        return excluded == address
    domain = name[1:] if name.startswith("*.") else name
    if domain.startswith("."):
        return host.endswith(domain)
    return domain != "" and f".{host}".endswith(f".{domain}")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
