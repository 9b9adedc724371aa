"""The daemon's socket, for clients that speak by httpx, and the running of checks."""

import asyncio
import inspect
import os
import sys
import traceback

SOCKET = os.environ["HOB_SOCKET"]
# Longer than a small model takes on a slow device.
TIMEOUT = 600


def library():
    """The HTTP library that the client's version speaks by: the one that it has loaded."""
    return sys.modules.get("httpx2") or sys.modules["httpx"]


def sync_client():
    http = library()
    return http.Client(transport=http.HTTPTransport(uds=SOCKET), timeout=TIMEOUT)


def async_client():
    http = library()
    return http.AsyncClient(transport=http.AsyncHTTPTransport(uds=SOCKET), timeout=TIMEOUT)


def run(checks):
    """Runs functions, says which failed, and ends the program."""
    failed = 0
    for check in checks:
        try:
            result = check()
            if inspect.isawaitable(result):
                asyncio.run(result)
            print(f"  ok    {check.__name__}")
        except Exception:
            failed += 1
            print(f"  FAIL  {check.__name__}")
            traceback.print_exc()
    sys.exit(1 if failed else 0)
