"""Pages a person opens with a double click: one offline HTML file each. Never imports torch."""

from acpo.viewer.credit import write_credit_page

__all__ = ["write_credit_page"]
