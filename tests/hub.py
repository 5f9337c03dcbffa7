"""A Hub on loopback with one repository: what huggingface_hub asks to find its files and to fetch them."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """Its server has the `repository`, such as "datasets/USER/tales", its `files`, name -> content, and the paths that
    were `requested`."""

    def log_message(self, *_):
        """Keep the tests' output clean."""

    def answer(self, value, status=200, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, content in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), content)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def entry(self, name):
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def do_GET(self):
        path, files, repository = self.path.split("?")[0], self.server.files, self.server.repository
        self.server.requested.append(path)
        name = path.rsplit("/", 1)[-1]
        if f"/{repository.removeprefix('models/')}/resolve/" in path and name in files:
            self.answer(files[name], ETag=f'"{self.entry(name)["oid"]}"', X_Repo_Commit=COMMIT)
        elif path.startswith(f"/api/{repository}/tree/"):
            self.answer([self.entry(name) for name in files])
        elif path.startswith(f"/api/{repository}"):
            siblings = [{"rfilename": name} for name in files]
            self.answer({"id": repository.partition("/")[2], "sha": COMMIT, "siblings": siblings})
        else:
            self.answer({"error": "not found"}, 404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET


@contextlib.contextmanager
def hub_with(repository, handler=Hub):
    """Start the Hub in a thread, with no files yet."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.repository, server.files, server.requested = repository, {}, []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
