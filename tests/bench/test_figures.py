"""The tables of docs/figures.md: measured, recorded and filled in by one command."""

import pytest

from benches import figures

PAGE = """before
<!-- figures of clients: python -m benches.figures -->
old
<!-- end of clients -->
<!-- figures of servers: python -m benches.figures -->
kept
<!-- end of servers -->
after
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "README.md"
    path.write_text(PAGE)
    monkeypatch.setattr(figures, "PAGES", (path,))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    return path


def test_a_measured_table_is_filled_and_one_without_a_record_is_kept(page, capfd, monkeypatch):
    arguments = ("clients", "-s", "hello_async,hello_sync", "-S", "towline", "--no-control")
    monkeypatch.setitem(figures.MEASUREMENTS, "clients", arguments)
    assert figures.main(["--measure", "clients", "--quick", "--subjects", "towline"]) == 0
    text = page.read_text()
    assert "old" not in text
    assert "\nkept\n" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "Asynchronous:\n\n|  | towline |" in text
    assert "Blocking:\n\n|  | towline |" in text
    assert "towline bench report benches/results/clients.json.gz" in text
    assert (page.parent / "clients.json.gz").exists()
    assert "servers: no record" in capfd.readouterr().err
    assert figures.main([]) == 0
    assert page.read_text() == text


def test_the_committed_records_fill_the_committed_pages():
    for path in figures.PAGES:
        assert figures.filled(path.read_text()) == path.read_text(), (
            f"{path.name}: run python -m benches.figures"
        )
