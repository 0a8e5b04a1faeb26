"""The report as a browser shows it, on a desk, on a phone and on paper."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver

from fedapm.report import write_report
from tests.report.fake_runs import COMPARISON, Fake, write_comparison

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CLASSES = ["up", "down the stairs", "UncommonlyLongNameOfAClassThatNobodyCanBreak", *"defgh"]
WIDTHS = {"desk": 1280, "phone": 390}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ditto = Fake("ditto", "Ditto", views={"personal": 0.9, "global": 0.8})
    long = Fake("long", "AMethodWithAnUncommonlyLongNameThatNobodyCanBreak", clients=6)
    fakes = tuple(replace(fake, data="cifar10") for fake in (*COMPARISON, ditto, long))
    folder = write_comparison(tmp_path_factory.mktemp("runs"), fakes)
    for info in folder.rglob("run.json"):
        # shares of every size, so that every shade is there
        counts = [[[a, (a + b) % 8, 1 if b else 3 * a + 1] for a in range(8) for b in range(8)] for _ in range(6)]
        info.write_text(json.dumps(json.loads(info.read_text()) | {"classes": 8, "class_names": CLASSES}))
        views = json.loads((info.parent / "rounds.jsonl").read_text().splitlines()[-1])["evaluations"]
        content = {"round": 12, "views": dict.fromkeys(views, counts)}
        (info.parent / "classes.json").write_text(json.dumps(content))
    return write_report(folder)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture(params=WIDTHS, scope="module")
def page(request: pytest.FixtureRequest, driver: webdriver.Chrome, report: Path) -> webdriver.Chrome:
    width = WIDTHS[request.param]
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.get(report.as_uri())
    assert driver.execute_script("return window.innerWidth") == width
    return driver


def test_nothing_is_complained_about(page: webdriver.Chrome) -> None:
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_page_does_not_scroll_sideways(page: webdriver.Chrome) -> None:
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    wide, inner = page.execute_script("return [document.scrollingElement.scrollWidth, window.innerWidth]")
    assert wide <= inner


def test_figures_are_seen_and_fit(page: webdriver.Chrome) -> None:
    boxes = page.execute_script(
        "return [...document.querySelectorAll('figure > svg')].map(e => {"
        "const b = e.getBoundingClientRect(); return [b.left, b.right, b.width, b.height]})"
    )
    width = page.execute_script("return window.innerWidth")
    curves, differences, drift, spread, gains = 6, 1, 1, 1, 5
    assert len(boxes) == curves + differences + drift + spread + gains
    for left, right, wide, high in boxes:
        assert left >= 0
        assert right <= width
        assert wide > 250
        assert high > 90


def test_the_text_of_figures_stays_inside_them_and_is_large_enough(page: webdriver.Chrome) -> None:
    texts = page.execute_script(
        "return [...document.querySelectorAll('figure > svg')].flatMap(svg => {"
        "const s = svg.getBoundingClientRect(); return [...svg.querySelectorAll('text')].map(e => {"
        "const t = e.getBoundingClientRect(), inside = t.left >= s.left - 1 && t.right <= s.right + 1"
        " && t.top >= s.top - 1 && t.bottom <= s.bottom + 1;"
        "const scale = s.width / svg.viewBox.baseVal.width;"
        "return [e.textContent, inside, parseFloat(getComputedStyle(e).fontSize) * scale]})})"
    )
    assert len(texts) > 100
    assert [text for text, inside, _ in texts if not inside] == []
    assert min(size for *_, size in texts) >= 8


def test_tables_have_a_row_for_each_model(page: webdriver.Chrome) -> None:
    count = "return document.querySelectorAll(arguments[0] + ' tbody tr').length"
    assert page.execute_script(count, "#summary-table") == 6
    assert page.execute_script(count, "#best-table") == 6
    assert page.execute_script(count, "#difference-table") == 6
    assert page.execute_script(count, ".target-table") == 6 + 6
    assert page.execute_script(count, "#published-table") == 14
    assert page.execute_script(count, "#alone-table") == 6
    assert page.execute_script(count, "#client-table") == 6
    headers = "return [...document.querySelectorAll('th')].every(h => h.scope === 'row' || h.scope === 'col')"
    assert page.execute_script(headers)


def test_every_table_scrolls_in_its_own_box(page: webdriver.Chrome) -> None:
    inside = "return [...document.querySelectorAll('table')].every(t => t.closest('.scroll') !== null)"
    assert page.execute_script(inside)
    sticky = "return getComputedStyle(document.querySelector('#summary-table tbody th')).position"
    assert page.execute_script(sticky) == "sticky"


def test_the_tables_of_few_columns_fit_without_scrolling(page: webdriver.Chrome) -> None:
    fits = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".map(table => table.scrollWidth <= table.closest('.scroll').clientWidth)"
    )
    for table in ("#best-table", "#difference-table", ".target-table"):
        assert all(page.execute_script(fits, table)), table


def test_no_request_leaves_the_file(page: webdriver.Chrome) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []


def test_text_has_contrast_in_light_and_dark(page: webdriver.Chrome) -> None:
    measure = """
    const parse = c => c.match(/[\\d.]+/g).map(Number);
    const light = c => { const [r, g, b] = parse(c).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
      if ((parse(c)[3] ?? 1) > 0) return c } return 'rgb(255,255,255)' };
    return [...document.querySelectorAll('h1,h2,h3,p,a,th,td,li,summary,figcaption,.std,.unit,.flag,strong')]
      .map(e => { const a = light(getComputedStyle(e).color), b = light(ground(e));
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)] })
    """
    try:
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            assert [(ratio, what) for ratio, what in page.execute_script(measure) if ratio < 4.5] == []
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_it_prints(page: webdriver.Chrome) -> None:
    assert base64.b64decode(page.print_page()).startswith(b"%PDF")


def test_configurations_are_open_on_paper(page: webdriver.Chrome) -> None:
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = false)")
    try:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        height = "return document.querySelector('details:not(.long) pre').getBoundingClientRect().height"
        assert page.execute_script(height) > 20
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_headings_of_tables_do_not_collide(page: webdriver.Chrome) -> None:
    """Neither does one run into the next, nor does its text leave its box."""
    collide = """
    document.querySelectorAll('details').forEach(d => d.open = true);
    const bad = [];
    for (const row of document.querySelectorAll('thead tr')) {
      const cells = [...row.children].filter(c => getComputedStyle(c).position !== 'sticky');
      const boxes = cells.map(c => c.getBoundingClientRect());
      cells.forEach((c, k) => {
        const text = document.createRange(); text.selectNodeContents(c);
        const t = text.getBoundingClientRect();
        if (t.right > boxes[k].right + 1 || t.left < boxes[k].left - 1) bad.push('leaves its box: ' + c.textContent);
        if (k && boxes[k].left < boxes[k - 1].right - 1) bad.push('collides: ' + c.textContent);
      });
    }
    for (const group of document.querySelectorAll('h1, h2, h3, summary'))
      if (group.scrollWidth > group.clientWidth + 1) bad.push('too wide: ' + group.textContent);
    return bad"""
    assert page.execute_script(collide) == []


def test_figures_follow_the_page_into_the_dark(page: webdriver.Chrome) -> None:
    look = """
    const figure = document.querySelector('figure'), text = figure.querySelector('svg text');
    const line = [...figure.querySelectorAll('svg path')].find(p => getComputedStyle(p).stroke !== 'none');
    return [getComputedStyle(figure).backgroundColor, getComputedStyle(text).fill, getComputedStyle(line).stroke]"""
    seen = {}
    try:
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            seen[scheme] = page.execute_script(look)
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen["light"][0] == "rgb(255, 255, 255)"
    assert seen["dark"][0] == "rgb(28, 32, 38)"
    assert all(a != b for a, b in zip(seen["light"], seen["dark"], strict=True))


def test_a_pointer_is_told_exact_values(page: webdriver.Chrome) -> None:
    hit = """
    const tip = [...document.querySelectorAll('.tip circle')].at(-1);
    tip.scrollIntoView({block: 'center', behavior: 'instant'});
    const b = tip.getBoundingClientRect();
    const top = document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2);
    return [top.tagName, top.parentElement.querySelector('title').textContent]"""
    name, text = page.execute_script(hit)
    assert name == "circle"
    assert any(letter.isdigit() for letter in text)
