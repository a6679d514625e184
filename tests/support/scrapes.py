"""Scrapes of metrics, parsed."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.support.farm import TIMEOUT_S

# An endpoint refuses more than five scrapes a second.
_PAUSE_S = 0.3

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(address: str, path: str = "/metrics", tls: ssl.SSLContext | None = None) -> str:
    """The text that an address serves."""
    url = f"{'http' if tls is None else 'https'}://{address}{path}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=tls) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def scrape(address: str, tls: ssl.SSLContext | None = None) -> Samples:
    """The samples that a process serves, by name and labels."""
    families = text_string_to_metric_families(page(address, tls=tls))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def scrape_until(address: str, holds: Callable[[Samples], bool], what: str) -> Samples:
    """The first samples for which the condition holds; fails the test if it never does."""
    began = time.monotonic()
    while not holds(samples := scrape(address)):
        assert time.monotonic() - began < TIMEOUT_S, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(_PAUSE_S)
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of a name that have these labels."""
    wanted = frozenset(labels.items())
    return sum(number for (of, has), number in samples.items() if of == name and wanted <= has)
