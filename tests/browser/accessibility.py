"""axe-core on a page as it stands, with the page's own policy in force."""

from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page

from tools.console_assets import AssetFolders

ROOT: Final = Path(__file__).parent.parent.parent
AXE: Final = AssetFolders.of(ROOT, ROOT / ".venv").axe
SERIOUS: Final = frozenset({"serious", "critical"})
RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")

# The impact of a rule is that of each of its findings. A rule that can find nothing of these impacts is not run.
AUDIT: Final = """([tags, impacts]) => {
  const tooSlight = axe._audit.rules.filter((rule) => rule.impact && !impacts.includes(rule.impact));
  const rules = Object.fromEntries(tooSlight.map((rule) => [rule.id, { enabled: false }]));
  return axe.run(document, { runOnly: tags, rules, resultTypes: ["violations"] }).then((found) => found.violations);
}"""


def serious_findings(page: Page) -> list[str]:
    """Each with its rule, the elements and what to do. The script comes by the debugger, which no policy concerns.

    Skips the test, loudly, where set-up could not have axe-core.
    """
    if not AXE.exists():
        pytest.skip("NO AXE-CORE HERE, so no page was checked for accessibility: `ASSETS=auto make setup` fetches it")
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate(AUDIT, [RULES, sorted(SERIOUS)])
    return [_line(one) for one in found if one["impact"] in SERIOUS]


def _line(finding: dict[str, Any]) -> str:
    nodes = "; ".join(f"{node['html'][:160]} → {node['failureSummary']}" for node in finding["nodes"][:4])
    return f"{finding['id']} ({finding['impact']}, {len(finding['nodes'])} times): {finding['help']}: {nodes}"
