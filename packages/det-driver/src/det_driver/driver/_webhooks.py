"""Sends one alert to one receiver: a signed request, or mail."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from functools import partial
from typing import Any

from ..config import AlertSettings, Smtp, Webhook
from ..store import AlertRow

REQUEST_SECONDS = 10.0
"""How many seconds a receiver may take for each step of an exchange."""
_LATE = f"no answer within {REQUEST_SECONDS:g} s"
_AGAIN = (408, 425, 429)
_MOST_READ = 4096


class SendingFailed(Exception):
    """An alert is not sent. The message says why and holds no address."""

    def __init__(self, why: str, *, again: bool = True) -> None:
        super().__init__(why)
        self.again = again
        """Whether another attempt may succeed."""


def send_alert(settings: AlertSettings, webhook: Webhook, alert: AlertRow) -> None:
    """Send an alert. Raises SendingFailed."""
    if webhook.address is not None and settings.smtp is not None:
        _send_mail(settings.smtp, webhook.address, alert)
    else:
        _send_request(webhook, alert)


def _send_mail(smtp: Smtp, address: str, alert: AlertRow) -> None:
    # They are imported by those that send alone.
    import smtplib
    import ssl
    from email.message import EmailMessage
    from email.utils import formatdate

    title, description = alert.content["title"], alert.content["description"]
    message = EmailMessage()
    # A line break in a title must not begin another header.
    message["Subject"] = "".join(sign if sign.isprintable() else " " for sign in title)[:200]
    message["From"], message["To"] = smtp.sender, address
    message["Date"], message["Message-ID"] = formatdate(alert.created), f"<{alert.id}@det>"
    message.set_content(f"{title}\n\n{description}\n")
    # Without a context smtplib verifies no certificate.
    context = ssl.create_default_context()
    connect = partial(smtplib.SMTP_SSL, context=context) if smtp.security == "tls" else smtplib.SMTP
    try:
        with connect(smtp.host, smtp.port, timeout=REQUEST_SECONDS) as server:
            if smtp.security == "starttls":
                server.starttls(context=context)
            if smtp.user is not None:
                server.login(smtp.user, smtp.password or "")
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code = next(iter(error.recipients.values()))[0]
        raise SendingFailed(f"SMTP status {code} for the recipient", again=code < 500) from None
    except smtplib.SMTPResponseException as error:
        raise SendingFailed(f"SMTP status {error.smtp_code}", again=error.smtp_code < 500) from None
    except smtplib.SMTPException as error:
        raise SendingFailed(type(error).__name__) from None
    except TimeoutError:
        raise SendingFailed(_LATE) from None
    except OSError as error:
        raise SendingFailed(error.strerror or type(error).__name__) from None


def _send_request(webhook: Webhook, alert: AlertRow) -> None:
    """Send an alert by http. Redirects are not followed, as they lead to another host."""
    # They are imported by those that send alone.
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Return None, so that a redirect is an error."""

    body, headers = make_request(webhook, alert, time.time())
    request = urllib.request.Request(webhook.url, body, headers, method="POST")
    try:
        opener = urllib.request.build_opener(NoRedirects)
        with opener.open(request, timeout=REQUEST_SECONDS) as response:
            response.read(_MOST_READ)
    except urllib.error.HTTPError as error:
        error.close()
        raise SendingFailed(
            f"HTTP status {error.code}", again=error.code >= 500 or error.code in _AGAIN
        ) from None
    except urllib.error.URLError as error:
        reason = error.reason
        why = (reason.strerror or str(reason)) if isinstance(reason, OSError) else str(reason)
        raise SendingFailed(why) from None
    except TimeoutError:
        raise SendingFailed(_LATE) from None
    except (OSError, http.client.HTTPException) as error:
        # Its text may quote what the receiver sent.
        raise SendingFailed(type(error).__name__) from None


def make_request(webhook: Webhook, alert: AlertRow, now: float) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request.

    The signature is the HMAC-SHA256 of the timestamp, a comma and the body, in hexadecimal.
    """
    value = _slack(alert) if webhook.type == "slack" else _event(alert)
    body = json.dumps(value, allow_nan=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "det", "X-Det-Event-Id": alert.id}
    if webhook.secret is not None:
        timestamp = str(int(now))
        signed = hmac.new(
            webhook.secret.encode(), f"{timestamp},".encode() + body, hashlib.sha256
        ).hexdigest()
        headers |= {
            "X-Determined-AI-Signature-Timestamp": timestamp,
            "X-Determined-AI-Signature": signed,
        }
    return body, headers


def _event(alert: AlertRow) -> dict[str, Any]:
    """Return the body in the form of Determined's webhooks, which receivers may know."""
    data = dict(alert.content)
    state = data.get("experiment", {}).get("state")
    return {
        "event_id": alert.id,
        "event_type": "EXPERIMENT_STATE_CHANGE" if state else alert.kind.upper(),
        "timestamp": int(alert.created),
        "condition": {"state": state} if state else {},
        "event_data": data,
    }


def _slack(alert: AlertRow) -> dict[str, str]:
    text = f"{alert.content['title']}\n{alert.content['description']}".strip()
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, name)
    return {"text": text}
