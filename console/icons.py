"""Our own icons, drawn in the page: one stroke width, the text's colour, hidden from screen readers."""

from typing import Final

from markupsafe import Markup

_SHAPES: Final = {
    # states: each has another outline, so that they differ without colour
    "dot": '<circle cx="8" cy="8" r="5" fill="currentColor" stroke="none"/>',
    "half": '<circle cx="8" cy="8" r="4.6"/><path d="M8 3.4a4.6 4.6 0 0 1 0 9.2z" fill="currentColor" stroke="none"/>',
    "ring": '<circle cx="8" cy="8" r="4.6"/>',
    "triangle": '<path d="M8 2.6 14 13H2z" fill="currentColor" stroke="currentColor" stroke-linejoin="round"/>',
    "cross": '<path d="m3.6 3.6 8.8 8.8m0-8.8-8.8 8.8" stroke-width="2.6"/>',
    "diamond": '<path d="M8 2.4 13.6 8 8 13.6 2.4 8z" fill="currentColor" stroke="none"/>',
    "dash": '<path d="M3 8h10" stroke-width="2.4"/>',
    # places
    "fleet": '<rect x="2" y="2" width="5" height="5" rx="1"/><rect x="9" y="2" width="5" height="5" rx="1"/>'
    '<rect x="2" y="9" width="5" height="5" rx="1"/><rect x="9" y="9" width="5" height="5" rx="1"/>',
    "executive": '<path d="M2.4 13.4V9.2h2.8v4.2zM6.6 13.4V5.8h2.8v7.6zM10.8 13.4V2.6h2.8v10.8z"/>',
    "figures": '<path d="M8 2.4a5.8 5.8 0 1 0 5.8 5.8H8z"/>',
    "capacity": '<path d="M2 13.6h12M3 13.4V9.6M6.4 13.4V6M9.6 13.4V8M13 13.4V2.8"/>',
    "utilisation": '<path d="M8 2.4A5.6 5.6 0 1 0 13.6 8H8z"/><path d="M10.4 2.4a5.6 5.6 0 0 1 3.2 3.2h-3.2z"/>',
    "costs": '<circle cx="8" cy="8" r="5.8"/><path d="M10 5.8a2.6 2.6 0 1 0 0 4.4M5 7.4h3M5 8.8h3"/>',
    "statements": '<path d="M3.6 1.8h8.8v12.4l-2.2-1.4L8 14.2l-2.2-1.4-2.2 1.4zM6 5.4h4M6 8.4h4"/>',
    "jobs": '<path d="M2 4h12M2 8h8M2 12h10"/>',
    "start": '<path d="M4 14.2V2.2h8.4l-2 3 2 3H4"/>',
    "secrets": '<rect x="3" y="7.2" width="10" height="6.6" rx="1.2"/>'
    '<path d="M5.2 7V5a2.8 2.8 0 0 1 5.6 0v2M8 9.8v1.6"/>',
    "reclaims": '<path d="M3 8a5 5 0 1 1 1.5 3.6M3 12.5V9.4h3.1"/>',
    "on_call": '<path d="M3 9.6V8a5 5 0 0 1 10 0v1.6M3 9.4h2v4H3zM11 9.4h2v4h-2z"/>',
    "incidents": '<path d="M8 2.2 14.2 13H1.8zM8 6.4v3.2M8 11.3v.2"/>',
    "events": '<path d="M1.8 8h3l2-5 2.6 10 1.8-5h3"/>',
    "audit": '<path d="M4 1.8h6l2.6 2.6v9.8H4zM6.4 7h4M6.4 10h4"/>',
    "system": '<rect x="2" y="2.6" width="12" height="4.4" rx="1"/><rect x="2" y="9" width="12" height="4.4" rx="1"/>'
    '<path d="M4.6 4.8h.1M4.6 11.2h.1"/>',
    "access": '<circle cx="5.4" cy="8" r="3"/><path d="M8.4 8h6M12 8v2.6"/>',
    # actions
    "copy": '<rect x="5" y="5" width="8.6" height="8.6" rx="1.4"/><path d="M11 5V2.4H2.4V11H5"/>',
    "theme": '<circle cx="8" cy="8" r="5.6"/><path d="M8 2.4a5.6 5.6 0 0 1 0 11.2z" fill="currentColor"/>',
    "leave": '<path d="M9.6 2.4H3v11.2h6.6M6.6 8h7.2M11 5.2 13.8 8 11 10.8"/>',
    "menu": '<path d="M2 4.2h12M2 8h12M2 11.8h12"/>',
    "next": '<path d="m6 3.4 4.6 4.6L6 12.6"/>',
    "search": '<circle cx="7" cy="7" r="4.4"/><path d="m10.4 10.4 3.4 3.4"/>',
    "terminal": '<path d="m2.6 4 4 4-4 4M8 12h5.4"/>',
    "check": '<path d="m2.8 8.6 3.4 3.4 7-8"/>',
}


def icon(name: str) -> Markup:
    """Return the icon as SVG. Raises ``KeyError`` where there is none."""
    return Markup(  # noqa: S704  # our own constants alone
        '<svg class="icon" viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" '
        f'stroke-width="1.5" stroke-linecap="round" aria-hidden="true" focusable="false">{_SHAPES[name]}</svg>'
    )
