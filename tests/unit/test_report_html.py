"""The HTML report: what it shows, that nothing of a model becomes markup, and that it works in a browser."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atcfuse
from atcfuse.report.html import to_html
from atcfuse.report.html.strip import strip

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "report"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
HOSTILE = "</script><script>boom()</script>\"'<img src=x onerror=boom()>\u202e*/\n" + "n" * 10_000


def report() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / "bert.json").read_text(encoding="utf-8"))
    for fusion in document["fusions"]:
        fusion |= {"on_chip": {"UB": 150_000, "L1": 20_000}, "time_us_saved": [2.0, 30.0]}
        fusion |= {"stages_us": {"load": [1.0, 2.0], "cube": [0.5, 1.0], "vector": [2.0, 2.5], "store": [0.5, 1.0]}}
    document["chip"] = {"UB": 196_608, "L1": 524_288}
    document["left"] = [{"op": "MatMul", "count": 12}, {"op": "Gelu", "count": 2}]
    return document


def deep(layers: int) -> dict[str, Any]:
    document = report()
    pair = document["fusions"][:2]
    document["fusions"] = []
    for layer in range(layers):
        for fusion in copy.deepcopy(pair):
            text = json.dumps(fusion).replace("layer.0", f"layer.{layer}").replace("norm.0", f"norm.{layer}")
            document["fusions"].append(json.loads(text))
    return document


class Tags(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_same_report_gives_the_same_page() -> None:
    assert to_html(report()) == to_html(report())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_is_as_reviewed(golden: Any, lang: str) -> None:
    """Its content; style and script are files of their own."""
    page = to_html({**report(), "fusions": report()["fusions"][:2]}, lang)
    content = re.sub(r"(?s)(<style>|<script>).*?(</style>|</script>)", r"\1\2", page)
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    golden(f"report/page.{lang}.html", "\n".join(lines) + "\n")


def test_repeated_layers_fold() -> None:
    (block,) = strip(deep(32)["fusions"])
    assert (block.times, len(block.fusions), len(block.all)) == (32, 2, 64)
    page = to_html(deep(32))
    assert "×32" in page
    assert page.count('class="kernel"') == 2
    assert len(page) < 300_000


@pytest.fixture(scope="module")
def page_of_32_layers() -> str:
    """The page of a whole run: an encoder of 32 layers as an exporter writes it, nearly 3,000 nodes."""
    spec = importlib.util.spec_from_file_location("bench_models", ROOT / "bench" / "models.py")
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = models
    spec.loader.exec_module(models)
    found = atcfuse.optimize(models.transformer(32)).report
    assert sum(fusion["op"] == "FusedAttention" for fusion in found["fusions"]) == 32
    return to_html(found)


def test_the_page_of_a_large_model_is_small(page_of_32_layers: str) -> None:
    assert len(page_of_32_layers.encode()) < 300_000
    assert "×3" in page_of_32_layers


@browser
def test_the_page_of_a_large_model_opens_in_less_than_a_second(page_of_32_layers: str, tmp_path: Path) -> None:
    """From navigation to the end of the page, laid out; the best of three, as other work may be going on."""
    script = "document.body.getBoundingClientRect(); return performance.now();"
    assert min(_dump(page_of_32_layers, tmp_path, script)[0] for _ in range(3)) < 1000


def test_layers_fold_whatever_stands_before_the_first() -> None:
    """The embeddings come before the first layer, and something other between the layers than within them."""
    document = deep(12)
    for i, fusion in enumerate(document["fusions"]):
        fusion["left_before"] = {"Gather": 3} if i == 0 else {"MatMul": 2} if i % 2 else {"Add": 1}
        fusion["launches_saved_after_atc"] = 4 if i == 0 else 5
    (block,) = strip(document["fusions"])
    assert (block.times, block.between) == (12, {"Add": 1})
    page = to_html({**document, "left_last": {"Softmax": 1}})
    left = re.findall(r'class="left"><span>(.*?)</span>', page)
    assert left == ["Gather ×3", "Add", "MatMul ×2", "Softmax"]


def test_launches_that_were_taken_away_are_no_kernels_and_lose_nothing_that_was_left() -> None:
    document = deep(2)
    first, second = document["fusions"][:2]
    gone = [{**first, "op": "Identity", "rule": "no_op_cast", "name": f"cast_{i}"} for i in range(2)]
    document["fusions"] = [{**f, "left_before": {"Add": 1}} for f in (first, gone[0], second, gone[1])]
    page = to_html({**document, "left_last": {"Softmax": 1}})
    assert re.search(r"Fused kernels <small>2</small>", page)
    assert re.findall(r'class="left"><span>(.*?)</span>', page) == ["Add", "Add ×2", "Add, Softmax"]
    assert re.findall(r'class="op">(.*?)</span>', page) == [first["op"], second["op"]]
    assert "taken away: 2" in page
    assert all(f"<td>cast_{i}</td>" in page for i in range(2))


def test_layers_with_something_else_between_them_do_not_fold() -> None:
    document = deep(3)
    for fusion, left in zip(document["fusions"], ({}, {}, {"Add": 1}, {}, {"Mul": 1}, {}), strict=True):
        fusion["left_before"] = left
    assert [block.times for block in strip(document["fusions"])] == [2, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=40))
def test_what_is_left_is_shown_where_it_stands(kinds: list[tuple[int, int]]) -> None:
    """Unfolded, the strip is the model again: no launch that was left is lost or shown twice."""
    pair = report()["fusions"]
    fusions = [
        {**pair[0], "op": f"Fused{kind}", "name": f"n{i}", "left_before": {"Add": left} if left else {}}
        for i, (kind, left) in enumerate(kinds)
    ]
    unfolded: list[Any] = []
    for block in strip(fusions):
        for run in range(block.times):
            for i, fusion in enumerate(block.fusions):
                left = block.between if run and i == 0 else fusion["left_before"]
                unfolded += [sum(left.values()), fusion["op"]]
    assert unfolded == [part for kind, left in kinds for part in (left, f"Fused{kind}")]


@given(st.lists(st.integers(0, 2), max_size=40))
def test_a_strip_shows_every_fusion_once_and_in_order(kinds: list[int]) -> None:
    pair = report()["fusions"]
    fusions = [{**pair[0], "op": f"Fused{kind}", "name": f"n{i}"} for i, kind in enumerate(kinds)]
    blocks = strip(fusions)
    assert [f["name"] for block in blocks for f in block.all] == [f["name"] for f in fusions]
    for block in blocks:
        assert [f["op"] for f in block.all] == [f["op"] for f in block.fusions] * block.times


def test_nothing_of_a_model_becomes_markup() -> None:
    plain = report()
    text = json.dumps(plain)
    names = [
        plain["model"]["name"],
        plain["kept"][2]["anchor"],
        plain["fusions"][0]["name"],
        plain["fusions"][0]["nodes"][0],
    ]
    for name in names:
        text = text.replace(json.dumps(name), json.dumps(HOSTILE))
    tags = Tags(to_html(json.loads(text))).found
    assert [t for t, _ in tags].count("script") == 1
    assert not [t for t, _ in tags if t == "img"]
    assert not [a for _, attributes in tags for a in attributes if a.startswith("on")]


def test_nothing_is_loaded_from_anywhere() -> None:
    page = to_html(report())
    assert not re.search(r"(?i)src=|href=(?!\"#)|url\(|@import|https?:", page)


def test_rules_of_kernels_lead_to_what_they_did() -> None:
    page = to_html(report())
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets
    assert targets <= set(re.findall(r' id="([^"]+)"', page))


def test_rules_and_codes_explain_themselves_in_the_page() -> None:
    off = frozenset({"layer_norm_operator"})  # the last norm is kept
    found = atcfuse.optimize(ROOT / "sample_models" / "bert_ts17_fp32_dynamic.onnx", disabled=off).report
    page = to_html(found)
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert {"rule-attention", "code-ATF321"} <= targets <= set(re.findall(r' id="([^"]+)"', page))
    assert "the rule is switched off" in page
    assert found["rules"]["attention"]["why"][:40] in page
    assert "summary" not in found["rules"]["rms_norm"]
    assert "规则已关闭" in to_html(found, "zh")


def test_what_costs_time_is_marked() -> None:
    document = report()
    for fusion in document["fusions"]:
        fusion |= {
            "launches_saved_after_atc": 1,
            "ddr_bytes_saved_after_atc": 0,
            "time_us_saved_after_atc": [-3.0, -1.0],
        }
    assert 'class="n loss"' in to_html(document)
    assert 'class="n loss"' not in to_html(report())


def _dump(page: str, tmp_path: Path, script: str, *flags: str) -> tuple[Any, str]:
    """What a script returns after the page has loaded, and what the browser logged."""
    file = tmp_path / "page.html"
    done = f"<script>document.title = 'result ' + JSON.stringify((() => {{ {script} }})());</script></body>"
    file.write_text(page.replace("</body>", done), encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0"]
    run = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r"<title>result (.*?)</title>", run.stdout, re.S)
    assert found is not None, run.stdout[:500]
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), run.stderr


_USE = """
const shown = () => [...document.querySelectorAll('.item')].filter((i) => !i.classList.contains('hidden')).length;
const all = shown();
const search = document.getElementById('search');
const type = (text) => { search.value = text; search.dispatchEvent(new Event('input')); return shown(); };
const one = type('pooler/softmax');
const none = type('no such text');
const back = type('');
document.getElementById('unfold').click();
const open = [...document.querySelectorAll('details')].every((d) => d.open);
const head = document.querySelectorAll('.sortable thead button')[3];
const press = (key, at) => (at ?? document.body).dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
press('/');
const searching = document.activeElement === search;
search.value = 'no such text';
press('Escape', search);
const cleared = search.value === '' && document.activeElement !== search && shown() === all;
press('j');
const first = document.activeElement;
press('j', first);
press('k', document.activeElement);
const walked = first.tagName === 'SUMMARY' && document.activeElement === first;
return { all, one, none, back, open, sortable: head !== undefined, searching, cleared, walked };
"""

_PRINTED = """
const folds = () => [...document.querySelectorAll('.layer, .figures')].map((fold) => fold.open);
const before = folds();
dispatchEvent(new Event('beforeprint'));
const during = folds();
const kernels = [...document.querySelectorAll('.kernel')].map((fold) => fold.open);
dispatchEvent(new Event('afterprint'));
return { before, during, after: folds(), kernels };
"""

_FOLLOWED = """
const link = document.querySelector('a.code, a[href^="#rule-"]');
const target = document.getElementById(link.getAttribute('href').slice(1));
const around = target.parentElement.closest('details');
const before = [target.open, around ? around.open : false];
location.hash = link.getAttribute('href');
dispatchEvent(new HashChangeEvent('hashchange'));
return { before, after: [target.open, around ? around.open : true] };
"""

_DEEP = """
const search = document.getElementById('search');
search.value = 'layer.29';
search.dispatchEvent(new Event('input'));
const items = [...document.querySelectorAll('.item:not(.hidden)')];
return { found: items.length, layers: items.filter((item) => item.querySelector('.layer')).length };
"""

_CONTRAST = """
const channel = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c;
  }
  return [255, 255, 255];
};
for (const d of document.querySelectorAll('details')) d.open = true;
const poor = [];
for (const e of document.querySelectorAll('body *:not(script)')) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${e.tagName} ${e.className} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
}
return { poor: [...new Set(poor)], dark: light(ground(document.body)) < 0.2, wide: document.body.scrollWidth > innerWidth };
"""


@browser
def test_folds_and_search_work_without_an_error(tmp_path: Path) -> None:
    found, log = _dump(to_html(report()), tmp_path, _USE)
    assert found["one"] == 1
    assert found["none"] == 0
    assert found["back"] == found["all"] > 5
    assert all(found[key] for key in ("open", "sortable", "searching", "cleared", "walked"))
    assert "CONSOLE" not in log


@browser
def test_hovering_over_a_figure_tells_where_it_comes_from(page_of_32_layers: str, tmp_path: Path) -> None:
    script = """
    const told = (e) => { for (; e; e = e.parentElement) if (e.title) return true; return false; };
    const figures = [...document.querySelectorAll('.n, .bar, .meter, .figures tbody tr, dd[data-figure]')];
    const shown = figures.filter((e) => /[0-9]/.test(e.textContent) && !e.closest('.heads'));
    return { shown: shown.length > 50, silent: shown.filter((e) => !told(e)).map((e) => e.outerHTML.slice(0, 200)) };
    """
    found, log = _dump(page_of_32_layers, tmp_path, script)
    assert found["shown"]
    assert found["silent"] == []
    assert "CONSOLE" not in log


@browser
def test_paper_gets_the_layers_and_all_figures(tmp_path: Path) -> None:
    found, log = _dump(to_html(deep(4)), tmp_path, _PRINTED)
    assert found == {"before": [False] * 2, "during": [True] * 2, "after": [False] * 2, "kernels": [False] * 2}
    assert "CONSOLE" not in log


@browser
def test_a_link_to_a_rule_opens_its_page(tmp_path: Path) -> None:
    document = report()
    document["rules"]["attention"] |= {"summary": "What it does.", "why": "Fewer launches.", "limits": "`BSH` only."}
    found, log = _dump(to_html(document), tmp_path, _FOLLOWED)
    assert found == {"before": [False, False], "after": [True, True]}
    assert "CONSOLE" not in log


@browser
def test_a_layer_is_found_by_a_name_that_is_folded_away(tmp_path: Path) -> None:
    found, _ = _dump(to_html(deep(32)), tmp_path, _DEEP)
    assert found == {"found": 1, "layers": 1}


@browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_text_can_be_read(tmp_path: Path, dark: bool, width: int) -> None:
    flags = [f"--window-size={width},900", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    found, log = _dump(to_html(report()), tmp_path, _CONTRAST, *flags)
    assert found == {"poor": [], "dark": dark, "wide": False}
    assert "CONSOLE" not in log


_CHINESE = """
const found = document.getElementById('found');
const search = document.getElementById('search');
const unfold = document.getElementById('unfold');
search.value = 'pooler/softmax';
search.dispatchEvent(new Event('input'));
const told = found.textContent;
const closed = unfold.textContent;
unfold.click();
const opened = unfold.textContent;
unfold.click();
const text = [...document.querySelectorAll('h2, th, dt, figcaption, .side, .lead')]
  .map((e) => [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent).join(' ').trim());
const font = getComputedStyle(document.body).fontFamily;
return { lang: document.documentElement.lang, told, closed, opened, again: unfold.textContent, text, font,
         wide: document.body.scrollWidth > innerWidth };
"""


@browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_chinese_works_the_same(tmp_path: Path, width: int) -> None:
    found, log = _dump(to_html(report(), "zh"), tmp_path, _CHINESE, f"--window-size={width},900")
    assert found["lang"] == "zh-Hans"
    assert found["told"] == "找到1项"
    assert (found["closed"], found["opened"], found["again"]) == ("全部展开", "全部收起", "全部展开")
    assert "Noto Sans CJK SC" in found["font"]
    assert not found["wide"]
    english = re.compile(r"\b(?:the|of|launches|fused|kept|rule|what|where|with|saves|before|after)\b")
    assert [text for text in found["text"] if english.search(text)] == []
    assert "CONSOLE" not in log


def test_the_language_of_the_page_is_told() -> None:
    assert '<html lang="en">' in to_html(report())
    assert '<html lang="zh-Hans">' in to_html(report(), "zh")
    assert "搜索报告" in to_html(report(), "zh")
