"""A report as one HTML file: no network, light and dark, for a phone, a desk and paper."""

from atcfuse.report.html.page import to_html

__all__ = ["to_html"]
