"""The webhooks of a home: `alerts.yaml`, which names where alerts are sent.

Addresses and keys are in this file alone, and in no experiment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from det_core.config import Extensions
from det_core.config.decoding import Decoding
from det_core.config.faults import Path
from det_core.config.fields import SECRET
from det_core.errors import ConfigError

from ._sentences import put
from ._source import from_file

ALERTS = "alerts.yaml"
AlertKind = Literal["completed", "failed", "canceled", "stuck", "alert", "disk", "quota"]


_MAILBOX = r"^[\w.+-]+@[\w.-]+$"
KINDS: tuple[AlertKind, ...] = get_args(AlertKind)


class Webhook(Struct, frozen=True, kw_only=True):
    """One receiver of alerts."""

    name: Annotated[str, Meta(pattern=r"^[\w.-]+$")]
    """Its name, for `integrations.webhooks.webhook_name`, and for messages."""
    url: Annotated[str, SECRET]
    """Its address: http, https or mailto. It is never shown, as it may hold a token."""
    type: Literal["json", "slack"] = "json"
    """`json`, with a signature if there is a `secret`, or `slack`."""
    secret: Annotated[str, Meta(min_length=1), SECRET] | None = None
    """The key of the signature, HMAC-SHA256."""
    on: Annotated[tuple[AlertKind, ...], Meta(min_length=1)] = KINDS
    """What it is sent."""
    mode: Literal["all", "specific"] = "all"
    """Whether it gets alerts of all experiments, or only of those that name it."""

    @property
    def address(self) -> str | None:
        """The address of a mailbox, or None for a webhook."""
        scheme, _, rest = self.url.partition(":")
        return rest if scheme == "mailto" else None

    @property
    def host(self) -> str:
        """The part of the address that may be shown."""
        if self.address is not None:
            return "mailto"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}"


class Smtp(Struct, frozen=True, kw_only=True):
    """The server that sends mail."""

    host: str
    """Its name."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 587
    """Its port."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted."""
    user: str | None = None
    """Who signs in. Without one, nobody does."""
    password: Annotated[str, SECRET] | None = None
    """The user's password."""
    sender: Annotated[str, Meta(pattern=_MAILBOX)]
    """The address that mail is from."""


class AlertSettings(Struct, frozen=True, kw_only=True):
    """The content of `alerts.yaml`."""

    # So a mistake in its form shows no address either.
    webhooks: Annotated[tuple[Annotated[Webhook, SECRET], ...], SECRET] = ()
    """The receivers."""
    smtp: Smtp | None = None
    """The server that sends mail, for addresses such as `mailto:me@example.org`."""
    stuck_after: Annotated[float, Meta(gt=0)] = 10.0
    """How many times its usual interval between messages a run may be silent."""
    stuck_minutes: Annotated[float, Meta(gt=0)] = 10.0
    """How many minutes a run may be silent at least."""
    disk_free_percent: Annotated[float, Meta(ge=0, le=100)] = 5.0
    """The disk of the home is nearly full if less of it is free."""


def read_alerts(home: FilePath) -> AlertSettings:
    """Read the webhooks of a home. Without a file there are none.

    Raises ConfigError with all mistakes and their places. It shows no address and no key.
    """
    path = home / ALERTS
    if not path.exists():
        return AlertSettings()
    source, problems = from_file(path)
    decoding = Decoding(Extensions(), {Webhook: _webhook, Smtp: _smtp, AlertSettings: _settings})
    settings: AlertSettings = decoding.struct(source.data, AlertSettings, ())
    faults = put(decoding.faults)
    lines = [source.place(fault.path, of_key=fault.of_key) + text for fault, text in faults]
    if problems or lines:
        raise ConfigError(*problems, *lines)
    return settings


def _settings(settings: AlertSettings, at: str) -> list[tuple[Path, str]]:
    names = Counter(webhook.name for webhook in settings.webhooks)
    if settings.smtp is None and any(w.address is not None for w in settings.webhooks):
        return [(("webhooks",), "smtp is missing; name the host that sends mail, and the sender")]
    return [
        (("webhooks",), f"webhooks: {count} are called {name!r}; give each its own name")
        for name, count in names.items()
        if count > 1
    ]


def _smtp(smtp: Smtp, at: str) -> list[tuple[Path, str]]:
    if smtp.security == "none" and smtp.password is not None:
        return [(("security",), f"{at}.security is none; do not send the password in the clear")]
    return []


def _webhook(webhook: Webhook, at: str) -> list[tuple[Path, str]]:
    return [(("url",), f"{at}.url: {text}") for text in _faults_of_url(webhook.url)]


def _faults_of_url(url: str) -> Iterator[str]:
    """Yield what is wrong with an address, without quoting it."""
    if url.startswith("mailto:"):
        if not re.fullmatch(_MAILBOX, url.removeprefix("mailto:")):
            yield "no address of mail; give one such as mailto:me@example.org"
        return
    try:
        parts = urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or not url.isascii() or not url.isprintable() or " " in url:
        yield "not an address; give one such as https://host/path"
    elif parts.scheme not in ("http", "https"):
        yield "only http, https and mailto are sent to; give an address such as https://host/path"
    elif parts.username is not None:
        yield "names a user; give a token in the path or the query instead"
