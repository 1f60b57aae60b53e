"""How the page of a plan looks, in light and dark. The colours of tracks keep apart for the colour-blind as well."""

from typing import Final

_LIGHT: Final = ("#0b6fb8", "#c65102", "#1a8a5a", "#a0479b", "#8a6d00", "#3b4cc0", "#b2182b", "#5a5a5a")
_DARK: Final = ("#5db2f2", "#ff9a57", "#56d39b", "#e394dd", "#e3c64a", "#99a5ff", "#ff7d85", "#b5b5b5")


def _colours(values: tuple[str, ...]) -> str:
    return "".join(f".c{place}{{--c:{value}}}" for place, value in enumerate(values))


STYLE: Final = (
    ":root{--ink:#1c2024;--soft:#5b6570;--paper:#fff;--rule:#d9dee3;--mark:#eef5fb;--alarm:#b3261e}"
    + _colours(_LIGHT)
    + "@media (prefers-color-scheme:dark){"
    ":root{--ink:#e6e9ec;--soft:#a3adb8;--paper:#14171a;--rule:#343b42;--mark:#1b2a38;--alarm:#ff8a80}"
    + _colours(_DARK)
    + "}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,'Segoe UI',Roboto,sans-serif}"
    "main{max-width:1000px;margin:0 auto;padding:24px 20px 60px}"
    "h1{font-size:1.6rem;margin:0 0 4px}h3{font-size:1rem;margin:28px 0 8px}"
    "p{margin:8px 0}.note{color:var(--soft);font-size:.87rem}"
    ".verdict{font-weight:600;background:var(--mark);padding:8px 12px;border-radius:6px}"
    ".scroll,.plot{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.9rem;min-width:60%}"
    "th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}"
    "tr:first-child th{color:var(--soft);font-weight:600;white-space:nowrap}"
    "tr:first-child th.number{text-align:right}"
    "th{font-weight:500}.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".bound th,.bound td{color:var(--soft);font-size:.85rem}.bound th{padding-left:14px}"
    ".total th,.total td{font-weight:600}"
    ".best th,.best td{background:var(--mark)}.alarm{color:var(--alarm)}"
    "figure{margin:24px 0}figcaption{font-weight:600;margin-bottom:6px}"
    "svg{display:block;width:100%;min-width:640px;height:auto}"
    ".legend{margin-top:24px}.legend span{margin-right:18px;white-space:nowrap}"
    ".key{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;background:var(--c)}"
    ".grid{stroke:var(--rule);stroke-width:1}"
    ".tick{fill:var(--soft);font:11px system-ui,'Segoe UI',Roboto,sans-serif}"
    ".mid{text-anchor:middle}.end{text-anchor:end}"
    ".line{fill:none;stroke:var(--c);stroke-width:1.6}.area{fill:var(--c);fill-opacity:.14}"
    ".bar,.seat{fill:var(--c)}"
    "summary{cursor:pointer;font-weight:600;padding:8px 0;border-bottom:1px solid var(--rule);margin-top:16px}"
    "@media (max-width:560px){main{padding:16px 12px 40px}table{font-size:.74rem}th,td{padding:4px 5px 4px 0}"
    "tr:first-child th{white-space:normal;vertical-align:bottom}.bound th,.bound td{font-size:inherit}"
    ".bound th{padding-left:6px}}"
    "@media (max-width:800px){.tick{font-size:14px}}"
    "@media print{details{display:block}.plot{overflow:visible}}"
)
