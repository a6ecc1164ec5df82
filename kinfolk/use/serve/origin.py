"""Which Host and Origin headers are answered: protection against DNS rebinding and cross-site requests.

A page of some other site can make a browser send requests to a server on the reader's own machine, either openly (its
`Origin` is then another than the server's) or by letting its own name resolve to 127.0.0.1 (`Host` is then that name).
"""

import ipaddress
import re
from collections.abc import Collection, Mapping

from kinfolk.core.errors import brief
from kinfolk.use.serve.messages import RefusalError

_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]+?)\.?)(?::\d+)?\Z")


def check(headers: Mapping[str, str], hosts: Collection[str] | None) -> None:
    """Refuse a request that a browser sends for another site.

    hosts: names that are answered besides localhost and plain addresses, which no DNS answer can forge; None: any name,
    for a server that asks for a token and is meant to be reached under names it does not know.
    """
    host, origin = headers.get("host", ""), headers.get("origin", "")
    if host and hosts is not None and not _is_known(host, hosts):
        message = f"host: {brief(host)} is not a name of this server; kin serve --allow-host NAME adds one"
        raise RefusalError(421, "unknown_host", message)
    if origin and origin.lower().partition("://")[2] != host.lower():
        message = f"origin: {brief(origin)} is another site; only this server's own page may send requests"
        raise RefusalError(403, "foreign_origin", message)


def _is_known(host: str, hosts: Collection[str]) -> bool:
    match = _HOST.match(host.lower())
    if match is None:
        return False
    try:
        ipaddress.ip_address(match["address"] or match["name"])
        return True
    except ValueError:
        return match["name"] is not None and match["name"] in {"localhost", *(one.lower() for one in hosts)}
