"""The page as an ASGI application: its routes, its bounds, and its security headers.

It only reads. A log-in form is the one thing that takes content from a browser. A page that takes
long is made in a child process or read in small steps, so that gRPC calls do not wait for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from frontend_svc.page.farm_data import FarmData
from frontend_svc.page.listener import PageListener
from frontend_svc.page.sessions import PageAccess
from frontend_svc.settings import FrontendSettings
from kernelfarm.bounded_text import bounded
from kernelfarm.errors import (
    CallerError,
    FarmFullError,
    KernelfarmError,
    MessageTooLargeError,
    UnauthenticatedError,
)
from kernelfarm.pages.farm_pages import OWN_SITE, error_page, login_page, overview_page
from kernelfarm.pages.rendering import content_policy
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.rates import TokenBuckets
from kernelfarm.service.tenants.identity import Identity

PAGE_TIMEOUT_S = 20.0
"""For how long one page may be made."""
MAX_FORM_BYTES = 4096
_BURST, _PER_S = 60, 10.0
"""Requests of one address: more than a person makes, and few enough to leave gRPC its time."""
_MAX_FIELDS = 4
_BODY_TIMEOUT_S = 5.0
_MAX_FIRST = 100_000
_KEY = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(r"[a-z0-9-]{0,63}")
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # `no-referrer` would hide the origin of our own forms as well.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Handler = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def serve_page(data: FarmData, settings: FrontendSettings) -> AsyncIterator[str]:
    """Serves the page while the block runs; gives the bound address.

    Raises:
        UnavailableError: the address cannot be bound.
        CallerError: the certificate cannot be used.
    """
    tls = settings.public_tls()
    page = FarmPage(data, settings, is_encrypted=tls is not None)
    context = None if tls is None else tls.context()
    listener = PageListener(page.app(), settings.page_max_connections, context)
    address = listener.start(settings.page_listen)
    get_logger().info("page_listening", address=address, is_encrypted=tls is not None)
    try:
        yield address
    finally:
        await listener.close()


class FarmPage:
    """The handlers of the page."""

    def __init__(self, data: FarmData, settings: FrontendSettings, *, is_encrypted: bool) -> None:
        self._data = data
        self._access = PageAccess(data.access, settings.page_session_s)
        self._requests: TokenBuckets[str] = TokenBuckets(_BURST, _PER_S)
        self._is_encrypted = is_encrypted
        self._session_s = settings.page_session_s
        # A name with this prefix is accepted over TLS alone, and never from another host.
        self._cookie = "__Host-kernelfarm" if is_encrypted else "kernelfarm"
        listen_host = settings.page_listen.rpartition(":")[0]
        names = {name.strip().lower() for name in settings.page_hosts.split(",")}
        self._hosts = frozenset({"localhost", listen_host.lower(), *names} - {""})

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route("/", self._guarded(self._overview), methods=["GET"]),
            Route("/programs/{key}", self._guarded(self._program), methods=["GET"]),
            Route("/login", self._guarded(self._log_in), methods=["GET", "POST"]),
            Route("/logout", self._guarded(self._log_out), methods=["POST"]),
            Route("/favicon.ico", self._guarded(self._no_icon), methods=["GET"]),
            Route("/{path:path}", self._guarded(self._nothing)),
        ]
        return Starlette(routes=routes)

    async def _overview(self, request: Request) -> Response:
        identity = self._identity(request)
        tenant, first = _tenant(request), _number(request.query_params.get("first", "0"))
        overview = await self._data.overview(identity, tenant, first)
        can_log_out = self._cookie in request.cookies
        page = await asyncio.to_thread(overview_page, overview, identity.name, can_log_out)
        return HTMLResponse(page, headers=_policy(""))

    async def _program(self, request: Request) -> Response:
        identity = self._identity(request)
        key = request.path_params["key"]
        if not _KEY.fullmatch(key):
            raise CallerError(f"key {key[:80]!r}; expected 64 hex digits")
        page = await self._data.program_page(identity, _tenant(request), bytes.fromhex(key))
        return HTMLResponse(page, headers=_policy("program.js"))

    async def _log_in(self, request: Request) -> Response:
        if request.method == "GET":
            return _login("", 200)
        token = _token_of(await _body(request))
        try:
            session = self._access.log_in(token, _address(request))
        except UnauthenticatedError as error:
            return _login(str(error), 401)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            self._cookie,
            session,
            max_age=int(self._session_s),
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._is_encrypted,
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        self._access.log_out(request.cookies.get(self._cookie, ""))
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(
            self._cookie, path="/", httponly=True, samesite="strict", secure=self._is_encrypted
        )
        return response

    async def _no_icon(self, request: Request) -> Response:
        return Response(status_code=204)

    async def _nothing(self, request: Request) -> Response:
        text = error_page("no such page", f"There is no page {request.url.path[:200]!r}.")
        return HTMLResponse(text, 404, headers=_policy(""))

    def _identity(self, request: Request) -> Identity:
        header = request.headers.get("authorization", "")
        session = request.cookies.get(self._cookie, "")
        return self._access.identify(header, session, _address(request))

    def _guarded(self, handler: Handler) -> Handler:
        """A handler with its time limit, its error pages and the headers of every response."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_rate(request)
                self._check_host(request)
                async with asyncio.timeout(PAGE_TIMEOUT_S):
                    response = await handler(request)
            except TimeoutError:
                message = f"The page was not ready within {PAGE_TIMEOUT_S:g} s; try again."
                response = HTMLResponse(error_page("timeout", message), 504, headers=_policy(""))
            except KernelfarmError as error:
                response = self._refusal(request, error)
            except Exception as error:  # the edge of a request: the page must say something
                get_logger().error("page_failed", message=bounded(str(error)), exc_info=error)
                text = error_page("error", "This is a bug of kernelfarm; the farm has logged it.")
                response = HTMLResponse(text, 500, headers=_policy(""))
            for name, value in _HEADERS.items():
                response.headers[name] = value
            return response

        return guarded

    def _refusal(self, request: Request, error: KernelfarmError) -> Response:
        is_browser = "text/html" in request.headers.get("accept", "")
        if isinstance(error, UnauthenticatedError) and is_browser:
            has_session = self._cookie in request.cookies
            return _login(str(error) if has_session else "", 401)
        is_too_large = isinstance(error, MessageTooLargeError)
        status = 413 if is_too_large else _STATUS.get(error.status, 500)
        response = HTMLResponse(
            error_page(error.reason.lower().replace("_", " "), bounded(str(error))),
            status,
            headers=_policy(""),
        )
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
        if isinstance(error, UnauthenticatedError):
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _check_rate(self, request: Request) -> None:
        address = _address(request)
        if not self._requests.take(address):
            error = FarmFullError(f"too many requests from {address}; retry in a second")
            error.retry_after_s = 1.0
            raise error

    def _check_host(self, request: Request) -> None:
        """Refuses a name that is not this farm's, and a form from another site.

        In a farm without tenants no credential protects the page. A foreign site could give its own
        name this machine's address, and then read the page with the visitor's browser.
        """
        host = request.url.hostname or ""
        if not _is_address(host) and host.lower() not in self._hosts:
            raise CallerError(
                f"host {host[:80]!r}; expected an IP address or one of"
                f" {', '.join(sorted(self._hosts))} (KERNELFARM_PAGE_HOSTS)"
            )
        origin = request.headers.get("origin", "")
        if request.method == "POST" and origin and origin != _own_origin(request):
            raise CallerError(f"a form from {origin[:80]!r}; expected this page's own")


def _login(message: str, status: int) -> Response:
    return HTMLResponse(login_page(message), status, headers=_policy(""))


def _policy(script: str) -> dict[str, str]:
    policy = content_policy(script, form_action=OWN_SITE)
    return {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}


async def _body(request: Request) -> bytes:
    """The body of a form.

    Raises:
        MessageTooLargeError: it is longer than a token needs.
    """
    body = bytearray()
    async with asyncio.timeout(_BODY_TIMEOUT_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise MessageTooLargeError(f"a form of more than {MAX_FORM_BYTES} bytes")
    return bytes(body)


def _token_of(body: bytes) -> str:
    """The token of a form; empty if it has none."""
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise CallerError(f"a form of more than {_MAX_FIELDS} fields; expected a token") from error
    return form.get("token", [""])[0].strip()


def _tenant(request: Request) -> str:
    tenant = request.query_params.get("tenant", "")
    if not _TENANT.fullmatch(tenant):
        raise CallerError(f"tenant {tenant[:80]!r}; expected lower-case letters, digits and dashes")
    return tenant


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) > _MAX_FIRST:
        raise CallerError(f"first={quote(text[:40])}; expected 0 to {_MAX_FIRST}")
    return int(text)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _own_origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
