"""The page in a real browser: drawn, without errors or requests, and readable on a phone."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from towline.bench.analysis import analyse
from towline.bench.record import Record
from towline.bench.report.history import History, charts
from towline.bench.report.html import html

from tests.support import browser

from . import synthetic
from .synthetic import HELLO, control, experiment, record

needs_browser = pytest.mark.skipif(
    browser.program() is None, reason="no Chromium here: apt-get install chromium"
)

HOSTILE = """</script><script>window.owned=1</script><img src=x onerror="window.owned=1">'"&lt;\u2028\0]]>"""


def sample(**more: object) -> Record:
    hello = experiment("hello", samples=60, rounds=5, restarts=5)
    broken = replace(
        hello.subjects[1], name="gunicorn", failure="exited with status 1", log="Traceback\n <oops>"
    )
    hello = replace(hello, subjects=[*hello.subjects, broken])
    at = experiment(
        "hello_at", HELLO[:3], question="latency", rate_per_s=8000, samples=200, rounds=5, restarts=5, seed=2
    )
    failed = experiment("echo", HELLO[:2], samples=60, rounds=5, restarts=5, seed=3)
    failed = replace(failed, slices=[replace(one, failed=1) for one in failed.slices])
    experiments = (control(samples=40, rounds=4, restarts=4), hello, at, failed)
    return record(*experiments, skipped={"nginx": "not installed"}, **more)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("page")
    analysis = analyse(sample())
    history = History(folder / "history.sqlite3")
    for days in range(4):
        earlier = replace(analysis.record, began_unix_s=analysis.record.began_unix_s - days * 86_400)
        history.append(replace(analysis, record=earlier))
    path = folder / "report.html"
    path.write_text(html(analysis, charts(history, analysis)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium():
    with browser.Browser() as running:
        yield running


PAINTED = """(() => [...document.querySelectorAll('.chart canvas')].map(canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    return seen.size;
}))()"""
ALL_DRAWN = """(() => { const all = [...document.querySelectorAll('.chart')];
    const next = all.find(one => !one.querySelector('canvas')); if (next) next.scrollIntoView(); return !next; })()"""


def opened(chromium, path, width, height, *, dark=False):
    page = browser.Page(chromium, path, width, height, dark=dark)
    page.wait(ALL_DRAWN)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page


@needs_browser
@pytest.mark.parametrize(
    ("width", "height", "dark"), [(1280, 900, False), (390, 844, False), (390, 844, True)]
)
def test_in_a_browser(chromium, page_file, tmp_path, width, height, dark):
    page = opened(chromium, page_file, width, height, dark=dark)
    painted = page.evaluate(PAINTED)
    assert len(painted) == 4 * 2 + 3, (
        "latency and slices for each experiment, history for all but the control"
    )
    assert min(painted) > 20, "a chart is blank"
    tracks = page.evaluate(
        "[...document.querySelectorAll('svg.track')].map(one => [one.getBoundingClientRect().width, one.children.length])"
    )
    assert len(tracks) > 40
    assert all(wide > 60 and shapes > 1 for wide, shapes in tracks)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    over = "[...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll, .track, .axis, .tip')).map(one => one.outerHTML.slice(0, 80))"
    assert page.evaluate(over) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in re.findall(r"\d+", background)[:3])
    assert brightness < 150 if dark else brightness > 600
    assert page.problems == []
    page.close()


@needs_browser
def test_all_charts_are_drawn_without_scrolling(chromium, page_file):
    page = browser.Page(chromium, page_file, 1280, 900)
    page.wait("[...document.querySelectorAll('.chart')].every(one => one.querySelector('canvas'))")
    assert page.evaluate("scrollY") == 0
    page.close()


@needs_browser
def test_text_can_be_read_in_both_schemes(chromium, page_file):
    """Contrast of text and background, WCAG's AA."""
    for dark in (False, True):
        page = opened(chromium, page_file, 1280, 900, dark=dark)
        low = page.evaluate(CONTRAST)
        assert low == []
        page.close()


CONTRAST = """(() => {
    const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => { const f = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
    const behind = one => { for (; one; one = one.parentElement) { const c = parse(getComputedStyle(one).backgroundColor); if (c.length === 3 || c[3] > .5) return c; } return [255, 255, 255]; };
    const low = [];
    for (const one of document.querySelectorAll('h1, h2, h3, h4, p, td, th, small, b, summary, li, .chip, .pill, .value, .name, .tile, .facts span, figcaption, dt, dd, .axis span')) {
        if (!one.textContent.trim() || one.matches('.none, .none *')) continue;
        const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
        if ((a + .05) / (b + .05) < 4.5) low.push(one.className + ' ' + one.tagName + ' ' + one.textContent.slice(0, 30) + ' ' + ((a + .05) / (b + .05)).toFixed(1));
    }
    return [...new Set(low.map(x => x))].slice(0, 10);
})()"""


@needs_browser
def test_colours_follow_the_scheme(chromium, page_file):
    page = opened(chromium, page_file, 800, 900)
    grid = "(() => { const c = document.querySelector('.chart canvas'); return c.toDataURL().length })()"
    before = page.evaluate("document.querySelector('.chart canvas').toDataURL()")
    page._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.wait(f"document.querySelector('.chart canvas').toDataURL() !== {json.dumps(before)}")
    assert page.evaluate(grid) > 1000
    assert page.problems == []
    page.close()


@needs_browser
def test_many_experiments_are_folded_and_the_matrix_opens_them(chromium, tmp_path):
    one = experiment("hello", HELLO[:2], samples=60, rounds=4, restarts=4)
    experiments = [replace(one, name=f"hello {number}") for number in range(6)]
    path = tmp_path / "many.html"
    path.write_text(html(analyse(record(*experiments))), encoding="utf-8")
    page = browser.Page(chromium, path, 390, 844)
    shut = "[...document.querySelectorAll('.experiment > .fold')].map(one => one.open)"
    assert page.evaluate(shut) == [False] * 5, "the first one is open, without a fold"
    assert page.evaluate("document.querySelector('.first .bars').getBoundingClientRect().bottom") < 844, (
        "a chart on the first screen"
    )
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.hint') || document.body).display") == "block"
    )
    assert page.evaluate("document.querySelector('#experiment-4 summary').innerText").count("faster") == 1
    page.evaluate("document.querySelector('a[href=\"#experiment-4\"]').click()")
    page.wait("document.querySelector('#experiment-4 > .fold').open")
    page.evaluate("document.querySelector('#experiment-4 .chart').scrollIntoView()")
    page.wait("document.querySelector('#experiment-4 .chart canvas') !== null")
    assert page.evaluate(shut) == [number == 4 for number in range(1, 6)]
    assert page.problems == []
    page.close()


def hostile_record() -> Record:
    one = experiment("hello", HELLO[:2], samples=40, rounds=4, restarts=5, title=HOSTILE, section=HOSTILE)
    name = {truth.name: f"{truth.name} {HOSTILE}" for truth in HELLO}
    subjects = [
        replace(
            each,
            name=name[each.name],
            command=[HOSTILE],
            versions={HOSTILE: HOSTILE},
            options={HOSTILE: HOSTILE},
        )
        for each in one.subjects
    ]
    failed = replace(subjects[0], name=HOSTILE, failure=HOSTILE, log=HOSTILE)
    slices = [
        replace(
            each,
            subject=name[each.subject],
            errors={HOSTILE: 1},
            extra={HOSTILE: 1.0},
            failed=1,
            first_failure=HOSTILE,
        )
        for each in one.slices
    ]
    load = {HOSTILE: HOSTILE, "connections": HOSTILE}
    hostile = replace(
        one,
        name=HOSTILE,
        subjects=[*subjects, failed],
        slices=slices,
        notes=[HOSTILE],
        load=load,
        scenario=HOSTILE,
    )
    return replace(
        record(hostile, skipped={HOSTILE: HOSTILE}),
        tool=HOSTILE,
        machine={HOSTILE: [HOSTILE], "cpu": HOSTILE},
        versions={HOSTILE: HOSTILE},
        command=[HOSTILE],
        settings={HOSTILE: {HOSTILE: HOSTILE}},
        net={HOSTILE: HOSTILE},
    )


@pytest.fixture(scope="module")
def hostile_page():
    hostile = hostile_record()
    analysis = analyse(hostile, baseline=hostile.experiments[0].subjects[0].name)
    lines = {
        "name": analysis.experiments[0].subjects[0].name,
        "x": [1.0, 2.0],
        "y": [1.0, 2.0],
        "low": [1.0, 2.0],
        "high": [1.0, 2.0],
    }
    return html(analysis, {HOSTILE: {"series": [lines], "unit": "/s"}})


def test_a_hostile_name_is_escaped(hostile_page):
    assert hostile_page.count("<script") == 3, "the data and our two scripts"
    assert "<img" not in hostile_page
    assert "\0" not in hostile_page
    assert "&lt;img src=x" in hostile_page


@needs_browser
def test_a_hostile_name_in_a_browser(chromium, hostile_page, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(hostile_page, encoding="utf-8")
    page = opened(chromium, path, 390, 844)
    page.evaluate(
        "document.querySelectorAll('.chart .u-over').forEach(one => one.dispatchEvent(new MouseEvent('mousemove', { clientX: 200, clientY: 5, bubbles: true })))"
    )
    assert page.evaluate("window.owned") is None
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.problems == []
    page.close()


@needs_browser
def test_the_policy_holds_even_if_escaping_did_not(chromium, page_file, tmp_path):
    path = tmp_path / "broken.html"
    text = page_file.read_text(encoding="utf-8")
    assert "<h2>Verdicts</h2>" in text
    path.write_text(text.replace("<h2>Verdicts</h2>", f"<h2>{HOSTILE[9:]}</h2>"), encoding="utf-8")
    page = opened(chromium, path, 800, 600)
    assert page.evaluate("window.owned") is None
    assert any("Content Security Policy" in one for one in page.problems), "it was tried, and refused"
    page.close()


def test_the_page_makes_no_requests(page_file):
    text = page_file.read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    outside = re.findall(
        r"""(?:src|href|action|url)\s*[=(]\s*["']?(?!data:|#)([^"'\s>)]+)""",
        re.sub(r"<script.*?</script>", "", text, flags=re.S),
    )
    assert outside == []
    assert "default-src &#x27;none&#x27;" in text


def test_the_page_has_the_required_texts(page_file):
    text = page_file.read_text(encoding="utf-8")
    for words in (
        "towline is faster than its peers",
        "gunicorn",
        "has no figures: exited with status 1",
        "The same subject measured twice had the verdict",
        "requests failed",
        "no verdict",
        "Published by others",
        "Seed 7",
        "towline bench quick",
        "nginx",
        "python -m uvicorn-h11 --port PORT",
        "Copyright (c) 2022 Leon Sorokin",
    ):
        assert words in text, words


def test_records_without_histograms_slices_or_experiments_have_a_page():
    one = experiment("hello", HELLO[:2], samples=20, rounds=3, restarts=1)
    bare = replace(one, slices=[replace(each, histogram=None) for each in one.slices])
    broken = replace(
        one,
        name="broken",
        slices=[replace(each, histogram=base64.b64encode(b"x" * 9).decode()) for each in one.slices],
    )
    empty = replace(one, name="empty", slices=[])
    text = html(analyse(record(bare, broken, empty, interrupted=True)))
    assert "its latencies cannot be shown" in text
    assert "Interrupted" in text
    assert html(analyse(record())).count("<section") == 2


def test_the_merged_percentile_is_that_of_all_samples():
    draw = [round(synthetic.HELLO[0].p50_us * 1000 * (1 + index / 50)) for index in range(100)]
    one = experiment("hello", HELLO[:1], samples=10, rounds=1, restarts=2)
    halves = [synthetic.encode(draw[:50]), synthetic.encode(draw[50:])]
    one = replace(
        one, slices=[replace(each, histogram=half) for each, half in zip(one.slices, halves, strict=True)]
    )
    from towline.bench.report.view import view

    found = view(analyse(record(one)).experiments[0]).subjects[0]
    assert found.percentile_us(0.5) == pytest.approx(draw[49] / 1e3, rel=2e-3)
    assert found.percentile_us(0.99) == pytest.approx(draw[98] / 1e3, rel=2e-3)
